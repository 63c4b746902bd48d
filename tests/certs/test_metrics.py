from datetime import timedelta

from certs.metrics import CertsMetrics
from certs.rotation import RenewalReason
from process.telemetry import new_registry
from tests.fakes.clock import NOON, VirtualClock


def test_each_event_counts_under_its_own_labels() -> None:
    registry = new_registry()
    metrics = CertsMetrics(registry, VirtualClock())

    metrics.renewed("fracgpu-ca", reason=RenewalReason.DUE)
    metrics.race_lost("fracgpu-ca")
    metrics.injected("MutatingWebhookConfiguration/x")
    metrics.failed(reason="Timeout")
    metrics.trusted(2)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fracgpu_certs_{name}", labels)

    assert value("renewals_total", certificate="fracgpu-ca", reason="due") == 1
    assert value("lost_races_total", certificate="fracgpu-ca") == 1
    assert value("injections_total", configuration="MutatingWebhookConfiguration/x") == 1
    assert value("trusted_authorities") == 2
    assert value("failures_total", reason="Timeout") == 1


def test_an_expired_certificate_has_negative_seconds_left() -> None:
    registry = new_registry()
    metrics = CertsMetrics(registry, VirtualClock())

    metrics.expires("fracgpu-ca", at=NOON - timedelta(seconds=3))

    left_s = registry.get_sample_value(
        "fracgpu_certs_expiry_seconds", {"certificate": "fracgpu-ca"}
    )
    assert left_s == -3
