"""What the policy compares of nodes follows the cluster, some nodes at a time."""

import json
from datetime import timedelta

import numpy as np

from fracgpu.placement.policies.least_waste.nodes import PolicyNodes
from tests.scheduler.harness import Harness
from tests.support.gpu import a_bound_gpu_pod, some_cards


def followed(cluster: Harness) -> PolicyNodes:
    nodes = PolicyNodes(cluster.matrix, cluster.bound_pods)
    refresh(cluster, nodes)
    return nodes


def refresh(cluster: Harness, nodes: PolicyNodes) -> None:
    cluster.matrix.refresh(now=cluster.clock.now())
    assert nodes.keep_up()


def test_free_parts_are_rounded_down_and_cpu_is_what_bound_pods_leave() -> None:
    cluster = Harness("a", "b", cards=2)
    nodes = followed(cluster)
    row = cluster.matrix.rows["a"]
    before = int(nodes.cpu_milli[row])
    assert nodes.levels[row].tolist() == [1000, 1000] + [0] * 30

    pod = a_bound_gpu_pod("p", node="a", mib=7)
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    cluster.api.put(pod)
    cluster.see("p")
    refresh(cluster, nodes)

    assert nodes.levels[row, :2].tolist() == [999, 1000]
    assert nodes.cpu_milli[row] == before - 2000 or before == 10**9
    assert nodes.size_mib[row, :2].tolist() == [24_000, 24_000]
    assert nodes.cards[row] == 2


def test_many_nodes_are_taken_over_some_at_a_time() -> None:
    cluster = Harness(*(f"n{number}" for number in range(10)), cards=2)
    matrix = cluster.matrix
    matrix.refresh(now=cluster.clock.now())
    nodes = PolicyNodes(matrix, cluster.bound_pods)

    assert [nodes.keep_up(4) for _ in range(3)] == [False, False, True]
    assert np.count_nonzero(nodes.cards) == 10
    moment = nodes.now
    assert nodes.keep_up(4)
    assert nodes.now == moment


def test_cards_that_take_nothing_are_full_and_a_node_that_is_gone_has_no_model() -> None:
    cluster = Harness("a", "b", cards=3)
    nodes = followed(cluster)
    rows = cluster.matrix.rows
    row, gone = rows["a"], rows["b"]
    until = (cluster.clock.now() + timedelta(minutes=5)).isoformat()
    entries = {
        "GPU-a-0": {"until": until, "effect": "PreferNoSchedule"},
        "GPU-a-1": {"until": until, "effect": "NoSchedule"},
    }
    moment = int(nodes.changed[row])
    cluster.annotate_node({"cordons": json.dumps(entries)}, node="a")
    cluster.ledger.remove_node("b")
    refresh(cluster, nodes)

    assert nodes.levels[row, :3].tolist() == [0, 0, 1000]
    assert nodes.changed[row] > moment
    assert nodes.model[row] >= 0
    assert nodes.model[gone] == -1

    cluster.add_node("c", some_cards("c", count=2))  # it gets the row of the one that has gone
    refresh(cluster, nodes)
    assert rows["c"] == gone
    assert nodes.model[gone] >= 0
    assert nodes.levels[gone, :3].tolist() == [1000, 1000, 0]
    assert nodes.usual_size_mib() == 24_000


def test_rows_are_added_as_the_matrix_grows_and_what_is_known_stays() -> None:
    cluster = Harness("a", cards=2)
    nodes = followed(cluster)
    first = cluster.matrix.rows["a"]
    for number in range(100):
        cluster.add_node(f"n{number}", some_cards(f"n{number}", count=2))
    refresh(cluster, nodes)

    assert len(nodes.model) == len(cluster.matrix.changed)
    assert nodes.levels[first, :2].tolist() == [1000, 1000]
    assert np.count_nonzero(nodes.model >= 0) == 101
