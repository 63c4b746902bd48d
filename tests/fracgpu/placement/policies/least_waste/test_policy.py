"""Compiled code costs nodes as the oracle does; and what the costs lead to."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.policies.least_waste.mix import Demand, PodClass
from fracgpu.placement.policies.least_waste.policy import Kind
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Weights
from tests.fracgpu.placement.policies.least_waste.demands import (
    EIGHT,
    HALF,
    MODELS,
    ODD,
    PICKY,
    PROCESSOR,
    WHOLE_CARD,
    SomeNodes,
    a_policy,
    chosen,
    folded,
    kind,
    mix,
    some_nodes,
)
from tests.fracgpu.placement.policies.least_waste.oracle import Oracle

LEVEL = st.sampled_from([0, 3, 40, 190, 310, 500, 690, 810, 999, 1000])
CPU = st.one_of(st.integers(-1000, 130_000), st.just(300_000))
NODES = st.lists(
    st.tuples(st.lists(LEVEL, min_size=1, max_size=5), CPU, st.integers(0, 1)),
    min_size=1,
    max_size=4,
)
DEMAND = st.builds(
    Demand,
    cpu_milli=st.integers(0, 64_000),
    cards=st.integers(1, 4),
    share_milli=st.sampled_from([1, 190, 310, 500, 810, 1000]),
    models=st.sampled_from([None, frozenset({"A100"}), frozenset({"T4"})]),
)
CLASSES = st.lists(
    st.tuples(st.one_of(DEMAND, st.builds(Demand, cpu_milli=st.integers(0, 30_000))),
              st.integers(1, 50)), max_size=5
)  # fmt: skip


def mix_of(counted: Sequence[tuple[Demand, int]]) -> tuple[PodClass, ...]:
    return folded(demand for demand, count in counted for _ in range(count))


def the_nodes(found: Sequence[tuple[list[int], int, int]]) -> SomeNodes:
    nodes = SomeNodes()
    for row, (levels, cpu_milli, model) in enumerate(found):
        nodes.put(row, *levels, model=model, cpu_milli=cpu_milli)
    return nodes


@settings(max_examples=60, deadline=None)
@given(
    NODES, CLASSES, DEMAND, st.sampled_from([FILLING, TURNING_OVER]), st.integers(0, 31), st.data()
)
def test_every_cost_and_card_is_the_oracles(
    found: list[tuple[list[int], int, int]],
    counted: list[tuple[Demand, int]],
    demand: Demand,
    weights: Weights,
    closed: int,
    data: st.DataObject,
) -> None:
    nodes, classes = the_nodes(found), mix_of(counted)
    policy = a_policy(nodes, classes, weights=weights)
    oracle = Oracle(classes, MODELS, nodes, weights)
    if data.draw(st.booleans()):  # a pod without cards
        demand = Demand(cpu_milli=demand.cpu_milli)
    pod = demand.cpu_milli, demand.cards, demand.share_milli
    masks = {row: closed for row in range(len(found)) if data.draw(st.booleans())}

    cost = policy.costs(kind(demand), np.arange(len(found)), closed=masks)

    for row, (levels, cpu, model) in enumerate(found):
        open_ = [at for at in range(len(levels)) if not masks.get(row, 0) >> at & 1]
        fitting = [at for at in open_ if levels[at] and levels[at] >= demand.share_milli]
        room = sorted(fitting, key=levels.__getitem__)
        choices = [[at] for at in room] if demand.cards == 1 else [room[: demand.cards]]
        costs = [
            oracle.rise(model, levels, cpu, cards, pod)
            for cards in choices
            if len(cards) == demand.cards
        ]
        assert cost[row] == pytest.approx(min(costs, default=np.inf), abs=2e-3)
        bits = policy.taken(kind(demand), row, closed=masks.get(row, 0), allowance=10**6)
        if bits is None:
            assert min(costs, default=np.inf) == np.inf
            continue
        taken = [at for at in range(32) if bits >> at & 1]
        assert len(taken) == demand.cards
        assert set(taken) <= set(open_)
        again = oracle.rise(model, levels, cpu, taken, pod)
        assert again == pytest.approx(min(costs), abs=2e-3)


def test_on_cards_of_different_sizes_the_same_mib_are_different_parts() -> None:
    nodes = some_nodes((1000, 1000))
    nodes.size_mib[0, :2] = 1000, 2000
    policy = a_policy(nodes, folded([HALF, WHOLE_CARD]))

    # On the first card 1,000 MiB are the whole card, on the second one half of it.
    masks = [~np.uint32(1 << card) for card in range(2)]
    cost, taken = policy.costs_without(
        Kind(mib=1000, cards=1), np.zeros(2, np.int64), np.array(masks), allowance=10**6
    )
    same = a_policy(some_nodes((1000, 1000)), folded([HALF, WHOLE_CARD]))

    assert taken.tolist() == [1, 2]
    rows = np.zeros(1, np.int64)
    assert cost[0] == same.costs(Kind(mib=1000, cards=1), rows)[0]
    assert cost[1] == same.costs(Kind(mib=500, cards=1), rows)[0]


def test_a_share_completes_a_card_rather_than_open_another() -> None:
    nodes = some_nodes((1000, 1000), (1000, 500), (1000, 1000))

    assert chosen(a_policy(nodes, folded([HALF, WHOLE_CARD])), nodes, HALF) == (1, (1,))


def test_a_single_card_pod_spares_the_last_whole_node() -> None:
    nodes = some_nodes([1000] * 8, [1000] * 3)

    assert chosen(a_policy(nodes), nodes, WHOLE_CARD) == (1, (0,))


@pytest.mark.parametrize("idle", [4, 5, 6, 7])
@pytest.mark.parametrize("demand", [HALF, WHOLE_CARD])
def test_where_pods_leave_a_nearly_empty_node_is_left_to_become_empty(
    idle: int, demand: Demand
) -> None:
    nodes = some_nodes([*[1000] * idle, *[0] * (8 - idle)], [1000, *[0] * 7])

    assert chosen(a_policy(nodes, weights=TURNING_OVER), nodes, demand) == (1, (0,))


def test_a_pod_that_takes_any_model_spares_the_one_that_others_name() -> None:
    nodes = some_nodes((1000,), (1000,))
    nodes.put(1, 1000, model=1)
    policy = a_policy(nodes, folded([PICKY, WHOLE_CARD, WHOLE_CARD]))

    assert chosen(policy, nodes, WHOLE_CARD) == (1, (0,))
    assert chosen(policy, nodes, PICKY) == (0, (0,))


def many_nodes(count: int = 40) -> SomeNodes:
    return some_nodes(*((500 + 37 * at % 500, 200 + 53 * at % 800) for at in range(count)))


def test_a_call_evaluates_no_more_than_its_allowance_and_says_what_it_does_not_know() -> None:
    policy = a_policy(nodes := many_nodes())
    exact = a_policy(nodes).costs(kind(HALF), nodes.rows)
    known = 0
    while True:
        before = policy.evaluated
        cost = policy.costs(kind(HALF), nodes.rows, allowance=7)
        assert policy.evaluated - before <= 7
        there = ~np.isnan(cost)
        assert cost[there].tolist() == exact[there].tolist()
        assert there.sum() >= known
        known = int(there.sum())
        if there.all():
            break


def test_those_rows_are_evaluated_first_that_the_caller_prefers() -> None:
    policy = a_policy(nodes := many_nodes())
    first = np.zeros(len(nodes.rows))
    first[[30, 31]] = 1.0

    cost = policy.costs(kind(HALF), nodes.rows, allowance=12, first=first)

    assert np.isfinite(cost[[30, 31]]).all()
    assert np.isnan(cost).any()


def test_a_change_of_a_node_changes_its_cost_and_no_others() -> None:
    policy = a_policy(nodes := some_nodes((1000, 500), (1000, 500), (1000, 500)))
    before = policy.costs(kind(HALF), nodes.rows).tolist()
    nodes.put(1, 690, 0)

    after = policy.costs(kind(HALF), nodes.rows).tolist()

    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] != before[1]


def test_prices_are_computed_again_after_some_changes_and_what_is_known_stays_known() -> None:
    classes = folded([EIGHT, WHOLE_CARD])
    nodes = some_nodes(*([1000] * 8 for _ in range(10)))
    policy = a_policy(nodes, classes)
    before = policy.costs(kind(WHOLE_CARD), np.array([0]))[0]
    for number in range(64):
        nodes.put(1 + number % 9, *[1000] * 7, 0)

    stale = policy.costs(kind(WHOLE_CARD), np.array([0]), allowance=0)[0]
    after = policy.costs(kind(WHOLE_CARD), np.array([0]))[0]

    assert stale == after > before


def test_nodes_of_a_model_that_it_does_not_know_have_no_cost() -> None:
    nodes = some_nodes((1000,), (1000,), (1000,))
    nodes.put(1, 1000, model=2)
    nodes.put(2, 1000, model=-1)

    cost = a_policy(nodes).costs(kind(WHOLE_CARD), np.arange(3))

    assert np.isfinite(cost).tolist() == [True, False, False]
    assert np.isnan(cost[1:]).all()


def test_kinds_beyond_those_that_are_remembered_cost_the_same() -> None:
    policy = a_policy(nodes := many_nodes(5))
    kinds = [Kind(mib=100 + at, cards=1, cpu_milli=at) for at in range(300)]
    costs = [policy.costs(one, nodes.rows).tolist() for one in kinds]

    assert [policy.costs(one, nodes.rows).tolist() for one in kinds[:5]] == costs[:5]


def test_catching_up_evaluates_what_was_asked_for_in_small_steps_and_nothing_else() -> None:
    policy = a_policy(nodes := many_nodes())
    some = nodes.rows[:30]
    policy.costs(kind(HALF), some, allowance=0)
    steps, before = 0, policy.evaluated
    for _ in policy.catching_up():
        assert policy.evaluated - before <= policy.evaluated_in(1)
        steps, before = steps + 1, policy.evaluated

    assert steps > 0
    assert np.isfinite(policy.costs(kind(HALF), some, allowance=0)).all()
    assert list(policy.catching_up()) == []
    assert np.isnan(policy.costs(kind(HALF), nodes.rows, allowance=0)[30:]).any()


def test_rows_beyond_the_table_are_refused() -> None:
    policy = a_policy(many_nodes(3))

    with pytest.raises(AssertionError):
        policy.costs(kind(HALF), np.array([3_000]))


def test_equal_mixes_give_equal_answers_and_another_one_others() -> None:
    nodes = some_nodes((1000, 1000), cores=16)
    one, same, other = (
        a_policy(nodes, classes).costs(kind(PROCESSOR), nodes.rows).tolist()
        for classes in (mix(), mix(), folded([ODD]))
    )

    assert one == same != other
