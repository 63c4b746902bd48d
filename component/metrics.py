"""Metrics that several roles have under one name, with the role's prefix."""

import math
from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge

from process.clock import Clock


class ConfigMetrics:
    """Whether what the ConfigMap says is in use, and how many edits of it were not taken.

    Args:
        role: ``webhook`` makes ``fracgpu_webhook_config_valid``.
        registry: of the role.
    """

    def __init__(self, role: str, registry: CollectorRegistry) -> None:
        self._problems: list[Callable[[], str]] = []
        self._refused = Counter(
            f"fracgpu_{role}_config_refused_total",
            "Edits of the ConfigMap that were not accepted.",
            registry=registry,
        )
        valid = Gauge(
            f"fracgpu_{role}_config_valid",
            "0 while the ConfigMap has a value for this role that was not accepted, else 1.",
            registry=registry,
        )
        valid.set_function(lambda: not any(problem() for problem in self._problems))

    def watch(self, problem: Callable[[], str]) -> None:
        """Call *problem* at each scrape for why a part is not in use; empty while it is."""
        self._problems.append(problem)

    def refused(self) -> None:
        """Count an edit that was not taken."""
        self._refused.inc()


class CertificateMetrics:
    """The certificate that a role serves.

    Args:
        role: ``webhook`` makes ``fracgpu_webhook_certificate_expiry_seconds``.
        registry: of the role.
        clock: tells how long the certificate still lasts.
    """

    def __init__(self, role: str, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._read = Counter(
            f"fracgpu_{role}_certificates_total",
            "Certificates read from the Secret, accepted or refused.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("taken", "refused"):
            self._read.labels(outcome)
        self._expiry = Gauge(
            f"fracgpu_{role}_certificate_expiry_seconds",
            "Seconds until the certificate that is served expires; negative once it has.",
            registry=registry,
        )
        self._expiry.set(math.nan)

    def taken(self) -> None:
        """Count a certificate that is served from now on."""
        self._read.labels("taken").inc()

    def refused(self) -> None:
        """Count a Secret without a certificate that can be served."""
        self._read.labels("refused").inc()

    def expires(self, at: datetime) -> None:
        """Show from now on how long it is until *at*."""

        def left_s() -> float:
            return (at - self._clock.now()).total_seconds()

        self._expiry.set_function(left_s)
