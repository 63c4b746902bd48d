"""The webhook's metrics."""

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from component.metrics import ConfigMetrics
from webhook.admission.verdict import NO_DIALECT

# The API server waits 10 s for a webhook, so the buckets show anything above a tenth of that.
_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Decision(StrEnum):
    """How a review was answered; a metric label."""

    GRANTED = "granted"
    UNCHANGED = "unchanged"  # it has a request, and is already as it should be
    UNTOUCHED = "untouched"  # it requests nothing
    REFUSED = "refused"
    UNKNOWN_NAMESPACE = "unknown_namespace"  # which the API server never sends
    NAMESPACE_UNREAD = "namespace_unread"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"


class WebhookMetrics:
    """Decisions, their latency, the age of the cached cluster state, and the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.config = ConfigMetrics("webhook", registry)
        decisions = Counter(
            "fracgpu_webhook_decisions_total",
            "Admission reviews by outcome, and the dialect that the request was made in.",
            ["outcome", "dialect"],
            registry=registry,
        )
        self._count_of = cache(decisions.labels)  # a review looks for its own each time
        self._seconds = Histogram(
            "fracgpu_webhook_review_duration_seconds",
            "Time from the complete request body to the answer.",
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
            "Seconds since the API server last sent anything about nodes or about pods; the longer "
            "of the two.",
            registry=registry,
        )
        for decision in Decision:
            self._count_of(decision, NO_DIALECT)

    def decided(self, decision: Decision, *, duration_s: float, dialect: str = NO_DIALECT) -> None:
        self._count_of(decision, dialect).inc()
        self._seconds.observe(duration_s)

    def watch_connections(self, count: Callable[[], float]) -> None:
        """Call *count* at each scrape for the number of open connections."""
        self._connections.set_function(count)

    def watch_age(self, age_s: Callable[[], float]) -> None:
        """Call *age_s* at each scrape for the age of the cached nodes and pods."""
        self._age.set_function(age_s)
