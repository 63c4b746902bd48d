"""The benchmark of a plan without a target: every pod of every hot card is looked at."""

from collections import Counter

import pytest

from benchmarks.rebalancer_plan import (
    Size,
    a_state,
    cpu_s,
    plan,
    plan_many,
    planning_mib,
    planning_s,
)
from fracgpu.disruption.move import HoldReason

SMALL = Size(nodes=6, cards=4, pods=8, hot=2)


@pytest.mark.parametrize("size", [SMALL, Size(nodes=6, cards=4, pods=8, hot=2, room=True)])
def test_each_pod_of_each_hot_card_finds_no_target(size: Size) -> None:
    held = Counter(entry.reason for entry in plan(a_state(size)).held)

    assert held == {HoldReason.NO_TARGET: size.hot * size.pods}


@pytest.mark.slow
def test_a_thousand_nodes_with_a_hundred_hot_cards_and_no_target_take_less_than_a_second() -> None:
    state = a_state(Size())

    assert planning_s(state) < 1
    assert planning_mib(a_state(Size())) < 500


def test_with_targets_as_many_moves_are_planned_as_may_be_at_once() -> None:
    state = a_state(Size(nodes=60, cards=4, pods=8, hot=30, targets=True))
    state.learn()

    assert len({move.target for move in plan_many(state).moves}) == 20


@pytest.mark.slow
def test_a_plan_of_twenty_moves_over_thousands_of_targets_takes_less_than_a_second() -> None:
    state = a_state(Size(targets=True))
    state.learn()
    assert cpu_s(lambda: plan_many(state)) < 2  # what least-waste evaluates the first time is kept
    assert cpu_s(lambda: plan_many(state)) < 1
