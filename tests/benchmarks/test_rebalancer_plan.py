"""The benchmark of a plan without a target: every pod of every hot card is looked at."""

from collections import Counter
from functools import partial

import pytest

from benchmarks.rebalancer_plan import (
    Size,
    a_state,
    plan,
    plan_many,
    planning_mib,
)
from fracgpu.disruption.move import HoldReason
from tests.support.work import calls_of

SMALL = Size(nodes=6, cards=4, pods=8, hot=2)


@pytest.mark.parametrize("size", [SMALL, Size(nodes=6, cards=4, pods=8, hot=2, room=True)])
def test_each_pod_of_each_hot_card_finds_no_target(size: Size) -> None:
    held = Counter(entry.reason for entry in plan(a_state(size)).held)

    assert held == {HoldReason.NO_TARGET: size.hot * size.pods}


def test_the_search_for_a_target_grows_with_the_nodes_and_with_the_pods_of_hot_cards() -> None:
    """A tenth of the cluster of `make bench`, where all of it takes less than a second."""
    calls = {
        (nodes, hot): calls_of(partial(plan, a_state(Size(nodes=nodes, hot=hot))))
        for nodes, hot in ((100, 10), (200, 10), (200, 20))
    }

    assert calls[100, 10] < 80_000
    assert calls[200, 10] < 1.6 * calls[100, 10]
    assert calls[200, 20] < 1.6 * calls[200, 10]
    assert planning_mib(a_state(Size(nodes=100, hot=10))) < 5


def test_with_targets_as_many_moves_are_planned_as_may_be_at_once() -> None:
    state = a_state(Size(nodes=60, cards=4, pods=8, hot=30, targets=True))
    state.learn()

    assert len({move.target for move in plan_many(state).moves}) == 20


def test_a_plan_of_twenty_moves_takes_hardly_more_work_on_four_times_the_nodes() -> None:
    few, many = (a_state(Size(nodes=nodes, hot=30, targets=True)) for nodes in (60, 240))
    for state in (few, many):
        state.learn()

    first, again, of_many = (calls_of(partial(plan_many, state)) for state in (few, few, many))

    assert again <= first < 750_000
    assert of_many < 1.3 * first
