"""The rebalancer's metrics exist from the start, with units and few labels."""

import re
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from fracgpu.disruption.heat import Heat, ReadingQuality
from fracgpu.disruption.move import Ending, HoldReason
from fracgpu.disruption.policy import Mode
from rebalancer.metrics import RebalancerMetrics, move_labels
from rebalancer.usage.prometheus import QueryError

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_label_set_exists_at_zero_before_anything_happens() -> None:
    registry = CollectorRegistry()
    RebalancerMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fracgpu_rebalancer_{name}", labels)

    assert all(
        value("decisions_total", outcome="held", reason=reason.label) == 0 for reason in HoldReason
    )
    for mode in ("surge", "evict", "dryRun"):
        for ending in Ending:
            _, result, reason = move_labels(mode, ending)
            assert value("moves_total", mode=mode, result=result, reason=reason) == 0
    assert all(value("cards", state=heat.value) == 0 for heat in Heat)
    assert all(value("card_trust", trust=quality.value) == 0 for quality in ReadingQuality)
    assert value("evictions_total", code="allowed") == 0
    for error in QueryError:
        assert value("prometheus_query_errors_total", reason=error.value) == 0
        assert value("blind", reason=error.value) == 0
    assert value("blind", reason="cards_stale") == 0
    assert value("dry_run_outcomes_total", source="hot", target="cool") == 0
    assert value("reverts_total") == 0
    assert value("lost_pods_total") == 0
    assert value("leader") == 0


def test_the_labels_of_a_cycle_that_is_blind_are_bounded_and_exclude_each_other() -> None:
    registry = CollectorRegistry()
    metrics = RebalancerMetrics(registry)
    metrics.set_blind("slow")

    metrics.set_blind("cards_stale")

    def shown() -> dict[str, float]:
        return {
            sample.labels["reason"]: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "fracgpu_rebalancer_blind"
        }

    assert [reason for reason, value in shown().items() if value] == ["cards_stale"]
    assert len(shown()) == len(QueryError) + 3
    metrics.set_blind("")
    assert set(shown().values()) == {0}


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


def test_the_page_on_metrics_lists_each_with_its_type_and_labels() -> None:
    registry = CollectorRegistry()
    RebalancerMetrics(registry)
    rows = DOCUMENT.read_text().partition("\n## The rebalancer\n")[2].splitlines()
    listed = {}
    for cells in (row.split(" | ") for row in rows if row.startswith("| `")):
        for name in re.findall(r"`(\w+)`", cells[0]):
            listed[name] = cells[1], sorted(re.findall(r"`(\w+)`", cells[2]))

    there = {}
    for family in registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        name = family.name.removeprefix("fracgpu_rebalancer_") + suffix
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        there[name] = family.type, sorted(labels)
    # Series of nodes, of hot cards and of the policy appear later.
    there["card_cordon"] = "gauge", ["UUID", "effect", "node"]
    there["card_heat"] = "gauge", ["UUID", "node", "state"]
    there["hot_card_seconds_total"] = "counter", ["cause", "node"]
    there["config_info"] = "gauge", ["hash", "mode"]
    assert listed == there
