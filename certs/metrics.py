"""Metrics of the certs role."""

from datetime import datetime

from prometheus_client import Counter, Gauge

from certs.rotation import RenewalReason
from process.clock import Clock
from process.telemetry import Registry


class CertsMetrics:
    """The metrics; certificates are labelled by the name of their Secret."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._expiry = Gauge(
            "fracgpu_certs_expiry_seconds",
            "Seconds until the certificate expires; negative once it has.",
            ["certificate"],
            registry=registry,
        )
        self._renewals = Counter(
            "fracgpu_certs_renewals_total",
            "Certificates made, by Secret and reason.",
            ["certificate", "reason"],
            registry=registry,
        )
        self._lost_races = Counter(
            "fracgpu_certs_lost_races_total",
            "Secrets that another writer wrote first.",
            ["certificate"],
            registry=registry,
        )
        self._injections = Counter(
            "fracgpu_certs_injections_total",
            "CA bundles written into a webhook configuration.",
            ["configuration"],
            registry=registry,
        )
        self._failures = Counter(
            "fracgpu_certs_failures_total",
            "Rounds that the API server cut short, by reason.",
            ["reason"],
            registry=registry,
        )

        self._valid = Gauge(
            "fracgpu_certs_webhook_configuration_valid",
            "0 while a webhook configuration is missing, has no webhook, or does not trust the "
            "authority, as last seen.",
            ["configuration"],
            registry=registry,
        )

        self._authorities = Gauge(
            "fracgpu_certs_trusted_authorities",
            "Authorities in the CA bundle; more than one while a rotation lasts.",
            registry=registry,
        )

        self._restarts = Gauge(
            "fracgpu_certs_awaited_restarts",
            "Deployments and DaemonSets that must restart before the newest authority signs.",
            registry=registry,
        )

    def expires(self, certificate: str, *, at: datetime) -> None:
        """Record when a stored certificate expires; scraped as the seconds left at that moment."""

        def left_s() -> float:
            return (at - self._clock.now()).total_seconds()

        self._expiry.labels(certificate).set_function(left_s)

    def trusted(self, authorities: int) -> None:
        self._authorities.set(authorities)

    def awaits_restarts(self, count: int) -> None:
        self._restarts.set(count)

    def renewed(self, certificate: str, *, reason: RenewalReason) -> None:
        self._renewals.labels(certificate, reason.value).inc()

    def race_lost(self, certificate: str) -> None:
        self._lost_races.labels(certificate).inc()

    def injected(self, configuration: str) -> None:
        self._injections.labels(configuration).inc()

    def saw_configuration(self, configuration: str, *, valid: bool) -> None:
        self._valid.labels(configuration).set(valid)

    def failed(self, *, reason: str) -> None:
        self._failures.labels(reason).inc()
