"""Counting a cycle: gauges show the last one, counters add up, and nothing is logged twice."""

import math
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from fracgpu.cards.card import CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardReading, CardUsage, Heat, HeatCause, ReadingQuality
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending, MovePhase, new_move
from rebalancer.hindsight import SourceFate, TargetFate, outcomes
from rebalancer.metrics import RebalancerMetrics, move_labels, timed
from rebalancer.usage.measured import Measured
from rebalancer.usage.prometheus import QueryError, QueryFailed
from tests.fakes.clock import NOON, VirtualClock
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_node,
    a_past_move,
    a_reading,
)

SHOWN, MADE = (
    new_move(a_move(), now=NOON).with_status(
        phase=MovePhase.DONE, phase_since=NOON, result=ending.value
    )
    for ending in (Ending.DRY_RUN, Ending.RELIEVED)
)


class Counted:
    """The cycle metrics and their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = RebalancerMetrics(self.registry)

    def count(
        self,
        state: DisruptionState,
        plan: Plan | None = None,
        *,
        later_s: float = 0,
        error: QueryError | None = None,
    ) -> None:
        trouble = error.value if error else ""
        measured = Measured(
            usage=state.usage, age_s=None if error else 7.0, trouble=trouble, error=error
        )
        now = NOON + timedelta(seconds=later_s)
        self.metrics.count(state, plan or Plan(), measured, policy=ACTIVE, now=now)

    def __getitem__(self, name: str) -> float | None:
        return self.get(name)

    def labels(self, name: str, *keys: str) -> set[tuple[str, ...]]:
        """Return these labels of every series that is 1 now."""
        return {
            tuple(sample.labels[key] for key in keys)
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"fracgpu_rebalancer_{name}" and sample.value == 1
        }

    def blind(self) -> list[str]:
        return [reason for (reason,) in self.labels("blind", "reason")]

    def get(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fracgpu_rebalancer_{name}", labels)


def test_a_card_that_is_not_cool_is_named_with_its_heat_for_as_long_as_it_is_not() -> None:
    counted = Counted()

    def heats() -> set[tuple[str, ...]]:
        return counted.labels("card_heat", "node", "UUID", "state")

    counted.count(a_disruption_state())
    assert heats() == {("n1", HOT_CARD, "hot")}

    counted.count(a_disruption_state(heat={HOT_CARD: Heat.SETTLING}))
    assert heats() == {("n1", HOT_CARD, "settling")}

    gone = a_disruption_state(nodes=[a_node("n2", COOL_CARD)], heat={HOT_CARD: Heat.HOT})
    counted.count(gone)
    assert heats() == set()


def test_a_card_that_is_closed_is_told_from_one_that_is_avoided_and_from_all_others() -> None:
    counted = Counted()

    def cordons() -> set[tuple[str, ...]]:
        return counted.labels("card_cordon", "node", "UUID", "effect")

    def a_cordon(card: str, effect: CordonEffect, *, lapsed: bool = False) -> Cordon:
        until = NOON + timedelta(minutes=-1 if lapsed else 5)
        return Cordon(card=CardUuid(card), until=until, reason="hot", effect=effect)

    def nodes(*cordons: Cordon) -> list[NodeCards]:
        first, second = a_node("n1", HOT_CARD), a_node("n2", COOL_CARD)
        return [replace(first, cordons=cordons[:1]), replace(second, cordons=cordons[1:])]

    closed = a_cordon(HOT_CARD, CordonEffect.NO_SCHEDULE)
    avoided = a_cordon(COOL_CARD, CordonEffect.PREFER_NO_SCHEDULE)
    counted.count(a_disruption_state(nodes=nodes(closed, avoided)))
    assert cordons() == {
        ("n1", HOT_CARD, "NoSchedule"),
        ("n2", COOL_CARD, "PreferNoSchedule"),
    }

    lapsed = a_cordon(COOL_CARD, CordonEffect.PREFER_NO_SCHEDULE, lapsed=True)
    counted.count(a_disruption_state(nodes=nodes(closed, lapsed)))
    assert cordons() == {("n1", HOT_CARD, "NoSchedule")}


def test_how_long_a_card_was_hot_is_counted_once_it_no_longer_is() -> None:
    counted = Counted()
    counted.count(a_disruption_state())
    counted.count(a_disruption_state(heat={HOT_CARD: Heat.RELIEVING}), later_s=100)
    assert counted["hot_seconds_count"] == 0

    counted.count(a_disruption_state(heat={HOT_CARD: Heat.SETTLING}), later_s=250)
    counted.count(a_disruption_state(heat={HOT_CARD: Heat.COOL}), later_s=300)
    assert (counted["hot_seconds_count"], counted["hot_seconds_sum"]) == (1, 250)

    counted.count(a_disruption_state(heat={HOT_CARD: Heat.HOT}), later_s=400)
    counted.count(a_disruption_state(heat={HOT_CARD: Heat.SETTLING}), later_s=440)
    assert (counted["hot_seconds_count"], counted["hot_seconds_sum"]) == (2, 290)


def test_a_card_that_is_gone_was_not_relieved() -> None:
    counted = Counted()
    counted.count(a_disruption_state())
    without = replace(a_disruption_state(), heat={})
    counted.count(without, later_s=100)

    assert counted["hot_seconds_count"] == 0


def test_cards_are_counted_by_heat_and_trust() -> None:
    counted = Counted()
    counted.count(a_disruption_state())

    assert counted.get("cards", state="hot") == 1
    assert counted.get("cards", state="cool") == 1
    assert counted.get("card_trust", trust="ok") == 2
    assert counted.get("hot_cards", relievable="true") == 1
    assert counted["coverage_ratio"] == 1
    assert counted.blind() == []
    assert counted["data_age_seconds"] == 7

    counted.count(a_disruption_state(readings={HOT_CARD: a_reading(0.9)}))  # by no pod of ours
    assert counted.get("hot_cards", relievable="true") == 0
    assert counted.get("hot_cards", relievable="false") == 1


@pytest.mark.parametrize(
    ("reading", "cause"),
    [
        (a_reading(0.9, pods={"pod-a": 0.9}), "one_pod"),
        (a_reading(0.9, pods={"pod-a": 0.85, "pod-b": 0.05}), "one_pod"),
        (a_reading(0.9, pods={"pod-a": 0.5, "pod-b": 0.4}), "several_pods"),
        (a_reading(0.9, pods={"pod-a": 0.2, "pod-b": 0.2}), "not_attributed"),
        (None, "not_measured"),
    ],
)
def test_hot_time_tells_what_keeps_the_card_busy(reading: CardReading | None, cause: str) -> None:
    counted = Counted()
    for later_s in (0, 15, 40):
        state = a_disruption_state(readings={HOT_CARD: reading}, heat={HOT_CARD: Heat.HOT})
        counted.count(state, later_s=later_s)

    shown = {
        it.value: counted.get("hot_card_seconds_total", node="n1", cause=it.value)
        for it in HeatCause
    }
    assert shown == dict.fromkeys(shown, 0) | {cause: 40}


def test_blindness_shows_whatever_its_cause_and_one_cause_at_a_time() -> None:
    counted = Counted()
    counted.count(a_disruption_state(readings={COOL_CARD: None}))
    assert counted.blind() == ["cards_unknown"]
    assert counted["coverage_ratio"] == 0.5

    counted.count(a_disruption_state(nodes=[], pods=[]), error=QueryError.UNREACHABLE)
    assert counted.blind() == ["unreachable"]
    age = counted["data_age_seconds"]
    assert age is not None
    assert math.isnan(age)

    counted.count(a_disruption_state(readings={HOT_CARD: None, COOL_CARD: None}))
    assert counted.blind() == ["cards_unknown"]
    counted.count(a_disruption_state())
    assert counted.blind() == []


def test_the_commonest_fault_of_the_cards_is_the_reason_to_be_blind() -> None:
    stale, partial = ReadingQuality.STALE, ReadingQuality.PARTIAL
    qualities = {"GPU-a": partial, "GPU-b": stale, "GPU-c": stale}
    usage = {
        CardUuid(uuid): CardUsage(card=CardUuid(uuid), quality=quality)
        for uuid, quality in qualities.items()
    }
    node = a_node("n", *(CardUuid(uuid) for uuid in qualities))
    state = replace(a_disruption_state(nodes=[node], pods=[]), usage=usage)
    counted = Counted()

    counted.count(state)

    assert counted.blind() == ["cards_stale"]


def test_nodes_are_shown_from_the_start_and_none_that_is_gone() -> None:
    counted = Counted()
    counted.count(a_disruption_state())
    assert counted.get("hot_card_seconds_total", node="n2", cause="several_pods") == 0

    counted.count(a_disruption_state(nodes=[a_node("n1", HOT_CARD)]), later_s=15)

    assert counted.get("hot_card_seconds_total", node="n1", cause="several_pods") == 15
    assert counted.get("hot_card_seconds_total", node="n2", cause="several_pods") is None


def test_a_dry_run_is_scored_once_a_real_move_would_have_been_verified() -> None:
    counted, state = Counted(), a_disruption_state(past=[SHOWN])

    counted.count(state, later_s=ACTIVE.settle_s - 1)
    assert counted.get("dry_run_outcomes_total", source="hot", target="cool") == 0
    counted.count(state, later_s=ACTIVE.settle_s)
    counted.count(state, later_s=ACTIVE.settle_s + 15)

    assert counted.get("dry_run_outcomes_total", source="hot", target="cool") == 1


def test_what_is_left_of_the_budgets_is_shown() -> None:
    counted = Counted()
    counted.count(
        a_disruption_state(past=[a_past_move(under_way=True), a_past_move(minutes_ago=90)])
    )

    assert counted["moves_in_flight"] == 1
    assert counted.get("budget_remaining", scope="in_flight") == 2
    assert counted.get("budget_remaining", scope="hour") == 11
    assert counted.get("budget_remaining", scope="day") == 78


def test_each_move_and_each_reason_is_counted_every_cycle() -> None:
    counted = Counted()
    held = HeldBack(subject="ml/a", reason=HoldReason.TOO_YOUNG)
    plan = Plan(moves=(a_move(), a_move()), held=(held,))
    counted.count(a_disruption_state(), plan)
    counted.count(a_disruption_state())
    counted.count(a_disruption_state(), plan)

    assert counted.get("decisions_total", outcome="moved", reason="") == 4
    assert counted.get("decisions_total", outcome="held", reason="too_young") == 2


def test_a_policy_is_told_when_it_changes_and_only_the_last_one() -> None:
    counted = Counted()
    counted.metrics.policy_in_use(ACTIVE, now=NOON)
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp()

    counted.metrics.policy_in_use(ACTIVE, now=NOON + timedelta(hours=1))
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp()

    off: RebalancerPolicy = replace(ACTIVE, mode=Mode.OFF)
    counted.metrics.policy_in_use(off, now=NOON + timedelta(hours=2))
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp() + 7200
    assert counted.get("config_info", hash=off.digest, mode="off") == 1
    assert counted.get("config_info", hash=ACTIVE.digest, mode="active") is None


async def test_times_and_troubles_are_counted() -> None:
    counted, clock = Counted(), VirtualClock()
    with timed(counted.metrics.cycle_s, clock):
        await clock.advance(3)
    with timed(counted.metrics.query_s, clock):
        await clock.advance(2)
    counted.metrics.no_answer(QueryFailed(QueryError.SLOW, "x"))
    counted.metrics.api_errors.inc()
    counted.metrics.leader.set(1)

    assert counted["cycle_seconds_sum"] == 3
    assert counted["prometheus_query_seconds_sum"] == 2
    assert counted.get("prometheus_query_errors_total", reason="slow") == 1
    assert counted["api_errors_total"] == 1
    assert counted["leader"] == 1


def test_a_clock_set_back_ends_nothing_and_counts_nothing() -> None:
    counted = Counted()
    counted.count(a_disruption_state(), later_s=60)
    counted.count(a_disruption_state(), later_s=0)
    counted.count(a_disruption_state(), later_s=15)

    assert counted.get("hot_card_seconds_total", node="n1", cause="several_pods") == 15


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


def judged(state: DisruptionState) -> tuple[SourceFate, TargetFate]:
    due = NOON + timedelta(seconds=ACTIVE.settle_s)
    state = replace(state, past=[SHOWN, MADE])
    (outcome,) = outcomes(state, policy=ACTIVE, since=NOON, now=due)
    assert outcome.move == SHOWN.spec
    return outcome.source, outcome.target


def test_a_source_still_hot_and_a_target_still_cool_make_it_right() -> None:
    assert judged(a_disruption_state()) == (SourceFate.HOT, TargetFate.COOL)


@pytest.mark.parametrize("heat", [Heat.COOL, Heat.SETTLING, Heat.WARMING])
def test_a_source_that_cooled_by_itself_makes_it_wrong(heat: Heat) -> None:
    state = a_disruption_state(heat={HOT_CARD: heat})

    assert judged(state)[0] is SourceFate.COOLED


def test_a_target_that_the_pod_would_have_made_hot_makes_it_wrong() -> None:
    """The pod uses 45 % of its card, and hot begins at 80 %."""
    just_cool = a_disruption_state(readings={COOL_CARD: a_reading(0.34)})
    heated = a_disruption_state(readings={COOL_CARD: a_reading(0.36)})

    assert judged(just_cool)[1] is TargetFate.COOL
    assert judged(heated)[1] is TargetFate.HEATED


def test_what_is_not_measured_then_is_not_judged() -> None:
    state = a_disruption_state(readings={HOT_CARD: None, COOL_CARD: None})

    assert judged(state) == (SourceFate.UNKNOWN, TargetFate.UNKNOWN)
