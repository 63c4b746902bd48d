"""The webhook's metrics."""

import math
from collections.abc import Callable
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from webhook.admission.verdict import NO_DIALECT

# The API server waits 10 s for a webhook, so the buckets show anything above a tenth of that.
_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Decision(Enum):
    """How a review was answered; a metric label."""

    GRANTED = "granted"
    UNCHANGED = "unchanged"  # it has a request, and is already as it should be
    UNTOUCHED = "untouched"  # it requests nothing
    REFUSED = "refused"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"


class WebhookMetrics:
    """Decisions, their latency, the age of the cached cluster state, and certificates loaded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "fracgpu_webhook_decisions_total",
            "Admission reviews by outcome, and the dialect that the request was made in.",
            ["outcome", "dialect"],
            registry=registry,
        )
        self._children: dict[tuple[Decision, str], Counter] = {}
        self._seconds = Histogram(
            "fracgpu_webhook_review_duration_seconds",
            "Time from a whole body to the answer.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._connections = Gauge(
            "fracgpu_webhook_connections",
            "Connections that are open to the HTTPS port.",
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
        self._expiry = Gauge(
            "fracgpu_webhook_certificate_expiry_seconds",
            "Seconds until the certificate that is served expires; negative once it has.",
            registry=registry,
        )
        self._config_refused = Counter(
            "fracgpu_webhook_config_refused_total",
            "Edits of the ConfigMap that were not taken.",
            registry=registry,
        )
        self._config_valid = Gauge(
            "fracgpu_webhook_config_valid",
            "0 while the ConfigMap says something that is not in use, or has a key nobody reads.",
            registry=registry,
        )
        self._expiry.set(math.nan)
        for decision in Decision:
            self._decisions.labels(decision.value, NO_DIALECT)
        for outcome in ("taken", "refused"):
            self._certificates.labels(outcome)

    def decided(self, decision: Decision, *, duration_s: float, dialect: str = NO_DIALECT) -> None:
        child = self._children.get((decision, dialect))
        if child is None:
            child = self._decisions.labels(decision.value, dialect)
            self._children[decision, dialect] = child
        child.inc()
        self._seconds.observe(duration_s)

    def certificate(self, *, taken: bool) -> None:
        self._certificates.labels("taken" if taken else "refused").inc()

    def watch_expiry(self, left_s: Callable[[], float]) -> None:
        """Call *left_s* at each scrape for the seconds until the certificate expires."""
        self._expiry.set_function(left_s)

    def config_refused(self) -> None:
        self._config_refused.inc()

    def watch_config(self, valid: Callable[[], bool]) -> None:
        """Call *valid* at each scrape for whether the whole ConfigMap is in use."""
        self._config_valid.set_function(valid)

    def watch_connections(self, count: Callable[[], float]) -> None:
        """Call *count* at each scrape for the number of open connections."""
        self._connections.set_function(count)

    def watch_age(self, age_s: Callable[[], float]) -> None:
        """Call *age_s* at each scrape for the age of the cached nodes and pods."""
        self._age.set_function(age_s)
