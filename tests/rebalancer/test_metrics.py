"""The rebalancer's metrics exist from the start, with units and few labels."""

from prometheus_client import CollectorRegistry

from fracgpu.disruption.heat import Heat, ReadingQuality
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode
from rebalancer.metrics import RebalancerMetrics
from rebalancer.moves.record import Ending


def test_every_label_set_exists_at_zero_before_anything_happens() -> None:
    registry = CollectorRegistry()
    RebalancerMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fracgpu_rebalancer_{name}", labels)

    assert all(
        value("decisions_total", outcome="held", reason=reason.label) == 0 for reason in HoldReason
    )
    assert all(value("moves_total", mode="active", result=ending.value) == 0 for ending in Ending)
    assert all(value("cards", state=heat.value) == 0 for heat in Heat)
    assert all(value("card_trust", trust=quality.value) == 0 for quality in ReadingQuality)
    assert value("evictions_total", code="allowed") == 0
    assert value("prometheus_errors_total", trouble="slow") == 0
    assert value("lost_pods_total") == 0
    assert value("leader") == 0


def test_only_one_policy_is_shown_at_a_time() -> None:
    registry = CollectorRegistry()
    metrics = RebalancerMetrics(registry)
    metrics.set_config(policy_hash="old", mode=Mode.ACTIVE, at_s=1)

    metrics.set_config(policy_hash="new", mode=Mode.OFF, at_s=2)

    name = "fracgpu_rebalancer_config_info"
    assert registry.get_sample_value(name, {"hash": "new", "mode": "off"}) == 1
    assert registry.get_sample_value(name, {"hash": "old", "mode": "active"}) is None


def test_every_name_begins_alike_and_every_figure_is_explained() -> None:
    registry = CollectorRegistry()
    RebalancerMetrics(registry)

    for family in registry.collect():
        assert family.name.startswith("fracgpu_rebalancer_")
        assert family.documentation.endswith(".")
