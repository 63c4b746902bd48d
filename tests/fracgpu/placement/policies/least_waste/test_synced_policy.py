"""The policy follows the cluster's nodes, some at a time where there are many."""

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import Columns, Demand
from fracgpu.placement.policies.least_waste.card_states import Allowance
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.ranking import Ranking
from fracgpu.placement.policies.least_waste.synced_policy import SyncedPolicy
from tests.fracgpu.placement.policies.least_waste.demands import EIGHT, HALF, ODD, PAIR, WHOLE, mix
from tests.scheduler.harness import Harness
from tests.support.core import a_record, on
from tests.support.gpu import some_cards

NODES = [f"n{number}" for number in range(10)]
NO_CPU_HALF = Demand(cards=1, share_milli=500)
SIZE_MIB = 24_000


def synced() -> tuple[Harness, SyncedPolicy]:
    cluster = Harness(*NODES, cards=2)
    matrix = cluster.matrix
    matrix.refresh(now=cluster.clock.now())
    return cluster, SyncedPolicy(LeastWaste(mix(), matrix.models), matrix, cluster.bound_pods)


def test_many_nodes_are_passed_on_some_at_a_time() -> None:
    _, policy = synced()

    assert [policy.keep_up(4) for _ in range(3)] == [False, False, True]
    assert set(policy.policy.rows) == set(NODES)
    assert policy.keep_up(4)


def test_a_node_has_a_cost_once_it_has_been_passed_on() -> None:
    cluster, policy = synced()
    rows = cluster.matrix.rows_of(NODES)
    policy.keep_up(4)

    found = policy.costs(NO_CPU_HALF, SIZE_MIB, {}, Allowance())[rows]

    passed = len(policy.policy.rows)
    assert 0 < passed <= 4
    assert np.isfinite(found).sum() == passed
    assert np.isnan(found).sum() == len(NODES) - passed


def test_where_the_pod_does_not_fit_the_cost_is_infinite() -> None:
    cluster, policy = synced()
    rows = cluster.matrix.rows_of(NODES[:2])
    policy.keep_up()
    closed = {int(policy.row[rows[0]]): frozenset({0, 1})}

    found = policy.costs(NO_CPU_HALF, SIZE_MIB, closed, Allowance())[rows]

    assert np.isinf(found).tolist() == [True, False]


def test_costs_are_kept_only_when_all_are_known() -> None:
    _, policy = synced()
    policy.keep_up()

    asked = [policy.costs(NO_CPU_HALF, SIZE_MIB, {}, Allowance(most)) for most in (0, None, 0)]

    assert np.isnan(asked[0]).any()
    assert asked[2] is asked[1]


def test_of_many_different_requests_the_oldest_is_worked_out_anew_and_costs_the_same() -> None:
    _, policy = synced()
    policy.keep_up()
    demands = [Demand(cards=1, share_milli=share) for share in range(500, 600)]

    first = policy.costs(demands[0], SIZE_MIB, {}, Allowance())
    assert policy.costs(demands[0], SIZE_MIB, {}, Allowance()) is first
    for demand in demands:
        policy.costs(demand, SIZE_MIB, {}, Allowance())
    again = policy.costs(demands[0], SIZE_MIB, {}, Allowance())

    assert again is not first
    assert np.array_equal(again, first, equal_nan=True)


def test_a_node_that_goes_and_one_that_takes_its_row_are_told_apart() -> None:
    cluster, policy = synced()
    policy.keep_up()
    cluster.ledger.remove_node("n3")
    cluster.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()
    assert "n3" not in policy.policy.rows

    cluster.add_node("later", some_cards("later", count=2))
    cluster.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()
    row = cluster.matrix.rows["later"]
    assert policy.row[row] == policy.policy.rows["later"]


def test_nodes_that_leave_and_come_back_in_each_others_rows_keep_one_row_each() -> None:
    cluster, policy = synced()
    policy.keep_up()
    matrix = cluster.matrix
    before = {name: matrix.rows[name] for name in ("n0", "n1")}
    for name in before:
        cluster.ledger.remove_node(name)
    matrix.refresh(now=cluster.clock.now())
    for name in before:
        cluster.add_node(name, some_cards(name, count=2))
    matrix.refresh(now=cluster.clock.now())
    assert {name: matrix.rows[name] for name in before} != before, "rows are used again, last first"
    policy.keep_up()

    costs = policy.costs(HALF, SIZE_MIB, {}, Allowance())

    assert {name: policy.row[row] for name, row in matrix.rows.items()} == policy.policy.rows
    assert np.isfinite([costs[row] for row in matrix.rows.values()]).all()


def test_the_size_of_a_nodes_cards_is_not_that_of_a_node_that_was_in_its_row() -> None:
    cluster, policy = synced()
    cluster.add_node("large", some_cards("large", count=2, mib=4 * SIZE_MIB))
    cluster.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()
    row = cluster.matrix.rows["large"]
    cluster.ledger.remove_node("large")
    cluster.matrix.refresh(now=cluster.clock.now())
    cluster.add_node("small", some_cards("small", count=1, mib=SIZE_MIB))
    cluster.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()

    assert cluster.matrix.rows["small"] == row
    assert policy.size_mib[row] == SIZE_MIB


class Counting(LeastWaste):
    """Counts how often nodes are ranked."""

    ranked = 0

    def rank(self, *args: Any, **kwargs: Any) -> Ranking:
        self.ranked += 1
        return super().rank(*args, **kwargs)


class Bound:
    """A cluster whose cards are taken one slice after the other, and the policy that follows."""

    def __init__(self) -> None:
        self.cluster = Harness(*NODES[:4], cards=2)
        self.matrix = self.cluster.matrix
        self.taken = 0
        self.now = self.cluster.clock.now()
        self.matrix.refresh(now=self.now)
        self.policy = Counting(mix(), self.matrix.models)
        self.synced = SyncedPolicy(self.policy, self.matrix, self.cluster.bound_pods)
        self.synced.keep_up()

    def take(self, node: str, card: int, mib: int) -> None:
        self.taken += 1
        assignment = on(f"GPU-{node}-{card}", mib)
        until = self.now + timedelta(seconds=60)
        record = a_record(f"u{self.taken}")
        self.cluster.ledger.assume(record, node=node, assignment=assignment, until=until)
        self.matrix.refresh(now=self.now)
        self.synced.keep_up()

    def row(self, node: str) -> int:
        return int(self.synced.row[self.matrix.rows[node]])

    def cards_on(self, demand: Demand, node: str) -> tuple[int, ...] | None:
        return self.synced.cards_on(demand, self.row(node), {}, Allowance())


def test_the_cards_of_a_node_that_has_not_changed_since_filter_are_not_ranked_again() -> None:
    bound = Bound()
    bound.synced.costs(HALF, SIZE_MIB, {}, Allowance())

    assert bound.cards_on(HALF, "n0") == (0,)
    assert bound.policy.ranked == 1

    bound.take("n1", 0, 1000)
    assert bound.cards_on(HALF, "n0") == (0,)
    assert bound.policy.ranked == 1

    bound.take("n0", 0, SIZE_MIB)
    assert bound.cards_on(HALF, "n0") == (1,)
    assert bound.policy.ranked == 2


SLICES = st.lists(
    st.tuples(st.sampled_from(NODES[:4]), st.integers(0, 1), st.integers(1, SIZE_MIB // 3)),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SLICES, st.sampled_from([HALF, ODD, WHOLE, PAIR, EIGHT])), max_size=8))
def test_whatever_changes_after_filter_bind_gets_the_cards_that_ranking_anew_would_give(
    steps: list[tuple[list[tuple[str, int, int]], Demand]],
) -> None:
    bound = Bound()
    for slices, asked in steps:
        bound.synced.costs(asked, SIZE_MIB, {}, Allowance())
        for node, card, mib in slices:
            bound.take(node, card, mib)
        for node in NODES[:4]:
            for demand in (HALF, ODD, WHOLE, PAIR, EIGHT):
                found = bound.cards_on(demand, node)
                anew = bound.policy.rank(demand, among=np.array([bound.row(node)]))
                wanted = bound.policy.cards(anew, 0, demand) if len(anew.rows) else None
                assert found == wanted


def test_cards_are_those_of_a_ranking_of_the_node_alone_known_before_or_not() -> None:
    cluster, policy = synced()
    policy.keep_up()
    row = int(policy.row[cluster.matrix.rows["n3"]])
    nobody: dict[int, Columns] = {}

    def cards() -> tuple[int, ...] | None:
        return policy.cards_on(HALF, row, nobody, Allowance())

    alone = cards()
    policy.costs(HALF, SIZE_MIB, nobody, Allowance())

    assert alone == cards() == (0,)
    evaluated = policy.policy.evaluated
    closed = {row: frozenset({0})}
    assert policy.cards_on(HALF, row, closed, Allowance()) == (1,)
    assert policy.policy.evaluated == evaluated, "both cards lead to one state"
    everything = {row: frozenset({0, 1})}
    assert policy.cards_on(HALF, row, everything, Allowance()) is None
