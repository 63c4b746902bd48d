"""What the webhook counts."""

from collections.abc import Callable
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# The API server waits 10 s for a webhook; anything near a tenth of that deserves to be seen.
_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Decision(Enum):
    """How a call ended."""

    GRANTED = "granted"
    UNTOUCHED = "untouched"
    REFUSED = "refused"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"


class WebhookMetrics:
    """Decisions, their latency, the age of what we know and the certificates we took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "fracgpu_webhook_decisions_total",
            "Admission reviews by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "fracgpu_webhook_review_duration_seconds",
            "Time from a whole body to the answer.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._age = Gauge(
            "fracgpu_webhook_inventory_age_seconds",
            "Seconds since the API server last told about nodes or pods, whichever is longer ago.",
            registry=registry,
        )
        self._certificates = Counter(
            "fracgpu_webhook_certificates_total",
            "Certificates read from the Secret, taken or refused.",
            ["outcome"],
            registry=registry,
        )
        for decision in Decision:
            self._decisions.labels(decision.value)
        for outcome in ("taken", "refused"):
            self._certificates.labels(outcome)

    def decided(self, decision: Decision, *, duration_s: float) -> None:
        self._decisions.labels(decision.value).inc()
        self._seconds.observe(duration_s)

    def certificate(self, *, taken: bool) -> None:
        self._certificates.labels("taken" if taken else "refused").inc()

    def watch_age(self, age_s: Callable[[], float]) -> None:
        """Ask *age_s* at each scrape."""
        self._age.set_function(age_s)
