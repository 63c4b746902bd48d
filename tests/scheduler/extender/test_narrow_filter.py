"""Filter names the best node alone, unless the pod prefers some nodes itself."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.api import FilterResult
from scheduler.extender.filter import narrowed as narrow
from tests.scheduler.harness import Harness
from tests.support.core import on
from tests.support.work import counted_lines

SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
NODES = ("a", "b", "c")


def narrowed(cluster: Harness, name: str = "p", *nodes: str) -> FilterResult:
    args = cluster.asking(name, *(nodes or NODES))
    return narrow(args, cluster.extender.filter(args))


def fill(cluster: Harness, node: str, mib: int, *, card: int = 0) -> None:
    name = f"filler-{node}-{card}"
    cluster.create(name, mib=mib)
    cluster.ledger.assume(
        cluster.see(name).record,
        node=node,
        assignment=on(f"GPU-{node}-{card}", mib, container="train"),
        until=cluster.clock.now() + timedelta(hours=1),
    )


@given(held=st.tuples(*(st.integers(0, 24_000) for _ in NODES)), mib=st.integers(1, 24_000))
def test_the_one_node_is_the_one_that_prioritize_gives_all_points(
    held: tuple[int, ...], mib: int
) -> None:
    cluster = Harness(*NODES, cards=1)
    for node, amount in zip(NODES, held, strict=True):
        if amount:
            fill(cluster, node, amount)
    cluster.create(mib=mib)
    args = cluster.asking("p", *NODES)
    result = cluster.extender.filter(args)

    found = narrow(args, result)

    if len(result.passed) > 1:
        scores = dict(zip(NODES, cluster.extender.prioritize(args).tolist(), strict=True))
        assert [scores[node] for node in found.passed] == [10]
        assert set(found.passed) < set(result.passed)
    else:
        assert found == result


@pytest.mark.parametrize(
    "preference",
    [
        {"affinity": {"nodeAffinity": {SOFT: [{"weight": 1, "preference": {}}]}}},
        {"affinity": {"podAntiAffinity": {SOFT: [{"weight": 1, "podAffinityTerm": {}}]}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
    ids=["node affinity", "anti-affinity", "spreading"],
)
def test_what_the_pod_prefers_is_left_to_kube_scheduler(preference: dict[str, Any]) -> None:
    cluster = Harness(*NODES, cards=1)
    cluster.create(mib=1000, **preference)

    assert narrowed(cluster).passed == NODES


def test_a_node_with_a_soft_taint_is_named_only_if_every_node_has_as_many() -> None:
    cluster = Harness(*NODES, cards=1)
    fill(cluster, "b", 20_000)
    fill(cluster, "c", 10_000)
    cluster.create(mib=1000)

    cluster.taint_node("a", "PreferNoSchedule")
    assert narrowed(cluster).passed == ("b",)
    cluster.taint_node("b", "NoSchedule")
    assert narrowed(cluster).passed == ("b",)
    cluster.taint_node("b", "PreferNoSchedule")
    assert narrowed(cluster).passed == ("c",)
    cluster.taint_node("c", "PreferNoSchedule")
    assert narrowed(cluster).passed == ("b",)


def test_a_soft_taint_that_the_pod_tolerates_does_not_count() -> None:
    cluster = Harness(*NODES, cards=1)
    fill(cluster, "b", 20_000)
    cluster.create(mib=1000, tolerations=[{"operator": "Exists"}])
    cluster.taint_node("b", "PreferNoSchedule")

    assert narrowed(cluster).passed == ("b",)


def test_the_tolerations_are_searched_once_for_all_nodes_with_the_same_soft_taint() -> None:
    """Users may write thousands of them."""
    nodes = tuple(f"n{at}" for at in range(40))
    cluster = Harness(*nodes, cards=1)
    keys = [f"example.com/{at}" for at in range(1_000)]
    cluster.create(mib=1000, tolerations=[{"key": key, "operator": "Exists"} for key in keys])
    for name in nodes:
        cluster.taint_node(name, "PreferNoSchedule")

    with counted_lines() as lines:
        assert len(narrowed(cluster, "p", *nodes).passed) == 1

    assert lines.count < 30_000


def test_a_pod_without_cards_is_left_to_kube_scheduler() -> None:
    cluster = Harness(*NODES)
    pod = cluster.create()
    body = json.loads(json.dumps(cluster.api.pods["p"]))
    body["spec"]["containers"][0]["resources"] = {}
    body["metadata"]["annotations"] = {}
    cluster.api.put(body)

    assert pod.need is not None
    assert narrowed(cluster).passed == NODES


def test_a_problem_stays_as_it_is() -> None:
    cluster = Harness(*NODES)
    cluster.create()
    args = cluster.asking("p", *NODES)
    problem = FilterResult(error="another replica leads")

    assert narrow(args, problem) is problem
