"""Topology spread constraints that refuse nodes."""

from typing import Any

import pytest

from fracgpu.k8s.scheduling.topology_spread import by_spread
from tests.support.scheduling import (
    ZONE,
    Json,
    a_scheduling_cluster,
    names_of,
    node_json,
    pod_json,
    read_pod,
    spread,
)

DEDICATED = {"key": "team", "effect": "NoSchedule"}
NODES = (
    node_json("a1", labels={ZONE: "a"}),
    node_json("a2", labels={ZONE: "a"}),
    node_json("b1", labels={ZONE: "b"}),
    node_json("c1", labels={ZONE: "c", "disk": "slow"}, taints=[DEDICATED]),
    node_json("nowhere"),
)


def web(name: str, **facts: Any) -> Json:
    return pod_json(name, **{"labels": {"app": "web"}, **facts})


def allowed(*constraints: Json, pods: tuple[Json, ...] = (), **facts: Any) -> set[str]:
    cluster = a_scheduling_cluster(NODES, pods)
    pod = read_pod(web("new", topologySpreadConstraints=list(constraints), **facts))
    return names_of(cluster, by_spread(cluster, pod, ()))


def test_a_zone_may_be_ahead_by_the_skew_and_a_node_without_zone_is_refused() -> None:
    one = (web("p1", node="a1"),)

    assert allowed(spread(), pods=one) == {"b1", "c1"}
    assert allowed(spread(skew=2), pods=one) == {"a1", "a2", "b1", "c1"}


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({}, {"b1", "c1"}),
        ({"nodeTaintsPolicy": "Honor"}, {"a1", "a2", "b1", "c1"}),
        ({"nodeTaintsPolicy": "Honor", "minDomains": 3}, {"c1"}),
    ],
)
def test_zones_whose_taints_the_pod_does_not_tolerate_count_only_if_told(
    more: Json, nodes: set[str]
) -> None:
    # One pod in a, one in b, none in c, whose only node has a taint.
    pods = (web("p1", node="a1"), web("p2", node="b1"))

    expected = {"c1"} if not more else nodes
    assert allowed(spread(**more), pods=pods) == expected


def test_zones_that_the_pod_does_not_select_count_only_if_told() -> None:
    pods = (web("p1", node="a1"), web("p2", node="b1"))
    wanted = {"key": "disk", "operator": "DoesNotExist"}
    fast = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [wanted]}]
            }
        }
    }

    assert "a1" in allowed(spread(), pods=pods, affinity=fast)
    assert allowed(spread(nodeAffinityPolicy="Ignore"), pods=pods, affinity=fast) == {"c1"}


def test_pods_of_another_version_are_not_counted() -> None:
    old = (web("p1", node="a1", labels={"app": "web", "version": "1"}),)
    by_version = spread(matchLabelKeys=["version"])

    assert "a1" in allowed(by_version, pods=old, labels={"app": "web", "version": "2"})
    assert "a1" not in allowed(by_version, pods=old, labels={"app": "web", "version": "1"})


def test_pods_that_are_leaving_or_of_another_namespace_are_not_counted() -> None:
    leaving = web("p1", node="a1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elsewhere = web("p2", node="a1", namespace="other")

    assert "a1" in allowed(spread(), pods=(leaving, elsewhere))


def test_an_empty_selector_counts_nobody_but_the_pod_itself() -> None:
    pods = (web("p1", node="a1"), web("p2", node="a1"))

    assert "a1" in allowed(spread(labelSelector={}), pods=pods)
