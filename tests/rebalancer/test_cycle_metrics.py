"""Counting a cycle: gauges show the last one, counters add up, and nothing is logged twice."""

import math
from dataclasses import replace
from datetime import timedelta

import structlog
from prometheus_client import CollectorRegistry

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from rebalancer.cycle_metrics import CycleMetrics
from rebalancer.metrics import RebalancerMetrics
from rebalancer.usage.measured import Measured
from rebalancer.usage.prometheus import QueryError, QueryFailed
from tests.fakes.clock import NOON, VirtualClock
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_past_move,
    a_reading,
)


class Counted:
    """The cycle metrics and their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.cycle_metrics = CycleMetrics(RebalancerMetrics(self.registry))

    def count(
        self,
        state: DisruptionState,
        plan: Plan | None = None,
        *,
        later_s: float = 0,
        trouble: str = "",
    ) -> None:
        measured = Measured(usage=state.usage, age_s=None if trouble else 7.0, trouble=trouble)
        now = NOON + timedelta(seconds=later_s)
        self.cycle_metrics.count(state, plan or Plan(), measured, policy=ACTIVE, now=now)

    def __getitem__(self, name: str) -> float | None:
        return self.get(name)

    def get(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fracgpu_rebalancer_{name}", labels)


def test_cards_are_counted_by_heat_and_trust() -> None:
    counted = Counted()
    counted.count(a_disruption_state())

    assert counted.get("cards", state="hot") == 1
    assert counted.get("cards", state="cool") == 1
    assert counted.get("card_trust", trust="ok") == 2
    assert counted.get("hot_cards", relievable="true") == 1
    assert counted["coverage_ratio"] == 1
    assert counted["blind"] == 0
    assert counted["data_age_seconds"] == 7


def test_a_hot_card_that_nothing_can_relieve_is_told_apart() -> None:
    counted = Counted()
    counted.count(a_disruption_state(readings={HOT_CARD: a_reading(0.9)}))

    assert counted.get("hot_cards", relievable="true") == 0
    assert counted.get("hot_cards", relievable="false") == 1


def test_hot_time_adds_up_by_node() -> None:
    counted = Counted()
    for later_s in (0, 15, 40):
        counted.count(a_disruption_state(), later_s=later_s)

    assert counted.get("hot_card_seconds_total", node="n1", cause="busy") == 40


def test_blindness_shows_whatever_its_cause() -> None:
    counted = Counted()
    counted.count(a_disruption_state(readings={COOL_CARD: None}))
    assert counted["blind"] == 1
    assert counted["coverage_ratio"] == 0.5

    counted.count(a_disruption_state(nodes=[], pods=[]), trouble="unreachable: refused")
    assert counted["blind"] == 1
    age = counted["data_age_seconds"]
    assert age is not None
    assert math.isnan(age)


def test_what_is_left_of_the_budgets_is_shown() -> None:
    counted = Counted()
    counted.count(
        a_disruption_state(past=[a_past_move(under_way=True), a_past_move(minutes_ago=90)])
    )

    assert counted["moves_in_flight"] == 1
    assert counted.get("budget_remaining", scope="in_flight") == 0
    assert counted.get("budget_remaining", scope="hour") == 5


def test_each_reason_is_counted_every_cycle_and_logged_once() -> None:
    counted = Counted()
    plan = Plan(held=(HeldBack(subject="ml/a", reason=HoldReason.TOO_YOUNG),))
    with structlog.testing.capture_logs() as logs:
        counted.count(a_disruption_state(), plan)
        counted.count(a_disruption_state(), plan)
        counted.count(a_disruption_state())
        counted.count(a_disruption_state(), plan)

    assert counted.get("decisions_total", outcome="held", reason="too_young") == 3
    assert [line["event"] for line in logs] == ["move_held", "move_held"]
    assert logs[0]["subject"] == "ml/a"


def test_a_policy_is_told_when_it_changes() -> None:
    counted = Counted()
    counted.cycle_metrics.config(ACTIVE, now=NOON)
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp()

    counted.cycle_metrics.config(ACTIVE, now=NOON + timedelta(hours=1))
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp()

    off: RebalancerPolicy = replace(ACTIVE, mode=Mode.OFF)
    counted.cycle_metrics.config(off, now=NOON + timedelta(hours=2))
    assert counted["config_last_success_timestamp_seconds"] == NOON.timestamp() + 7200


async def test_times_and_troubles_are_counted() -> None:
    counted, clock = Counted(), VirtualClock()
    with counted.cycle_metrics.cycle(clock):
        await clock.advance(3)
    with counted.cycle_metrics.queries(clock):
        await clock.advance(2)
    counted.cycle_metrics.no_answer(QueryFailed(QueryError.SLOW, "x"))
    counted.cycle_metrics.api_error()
    counted.cycle_metrics.leading()

    assert counted["cycle_seconds_sum"] == 3
    assert counted["prometheus_query_seconds_sum"] == 2
    assert counted.get("prometheus_errors_total", trouble="slow") == 1
    assert counted["api_errors_total"] == 1
    assert counted["leader"] == 1


def test_a_clock_set_back_ends_nothing_and_counts_nothing() -> None:
    counted = Counted()
    counted.count(a_disruption_state(), later_s=60)
    counted.count(a_disruption_state(), later_s=0)
    counted.count(a_disruption_state(), later_s=15)

    assert counted.get("hot_card_seconds_total", node="n1", cause="busy") == 15
