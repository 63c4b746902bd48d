"""The policy follows the cluster's nodes, some at a time where there are many."""

import numpy as np

from fracgpu.placement.node_matrix import Demand
from fracgpu.placement.policies.least_waste.card_states import Allowance
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.synced_policy import SyncedPolicy
from tests.fracgpu.placement.policies.least_waste.demands import mix
from tests.scheduler.harness import Harness
from tests.support.gpu import some_cards

NODES = [f"n{number}" for number in range(10)]
HALF = Demand(cards=1, share_milli=500)
SIZE_MIB = 24_000


def synced() -> tuple[Harness, SyncedPolicy]:
    cluster = Harness(*NODES, cards=2)
    matrix = cluster.fits.matrix
    matrix.refresh(now=cluster.clock.now())
    return cluster, SyncedPolicy(LeastWaste(mix(), matrix.models), matrix, cluster.bound_pods)


def test_many_nodes_are_passed_on_some_at_a_time() -> None:
    _, policy = synced()

    assert [policy.keep_up(4) for _ in range(3)] == [False, False, True]
    assert set(policy.policy.rows) == set(NODES)
    assert policy.keep_up(4)


def test_a_node_has_a_cost_once_it_has_been_passed_on() -> None:
    cluster, policy = synced()
    rows = cluster.fits.matrix.rows_of(NODES)
    policy.keep_up(4)

    found = policy.costs(HALF, SIZE_MIB, {}, Allowance())[rows]

    passed = len(policy.policy.rows)
    assert 0 < passed <= 4
    assert np.isfinite(found).sum() == passed
    assert np.isnan(found).sum() == len(NODES) - passed


def test_where_the_pod_does_not_fit_the_cost_is_infinite() -> None:
    cluster, policy = synced()
    rows = cluster.fits.matrix.rows_of(NODES[:2])
    policy.keep_up()
    closed = {int(policy.row[rows[0]]): frozenset({0, 1})}

    found = policy.costs(HALF, SIZE_MIB, closed, Allowance())[rows]

    assert np.isinf(found).tolist() == [True, False]


def test_costs_are_kept_only_when_all_are_known() -> None:
    _, policy = synced()
    policy.keep_up()

    asked = [policy.costs(HALF, SIZE_MIB, {}, Allowance(most)) for most in (0, None, 0)]

    assert np.isnan(asked[0]).any()
    assert asked[2] is asked[1]


def test_a_node_that_goes_and_one_that_takes_its_row_are_told_apart() -> None:
    cluster, policy = synced()
    policy.keep_up()
    cluster.ledger.remove_node("n3")
    cluster.fits.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()
    assert "n3" not in policy.policy.rows

    cluster.add_node("later", some_cards("later", count=2))
    cluster.fits.matrix.refresh(now=cluster.clock.now())
    policy.keep_up()
    row = cluster.fits.matrix.rows["later"]
    assert policy.row[row] == policy.policy.rows["later"]
