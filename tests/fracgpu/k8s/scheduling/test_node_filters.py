"""Which nodes would take a pod, filter by filter, and all of them together."""

from typing import Any

import pytest

from fracgpu.k8s.scheduling.cluster import Change, SchedulingCluster
from fracgpu.k8s.scheduling.node_filters import (
    NodeFilter,
    allowed_nodes,
    refusals,
    refusals_by_node,
)
from fracgpu.k8s.scheduling.volumes import Storage, Volume, VolumeClaim
from tests.support.scheduling import (
    NAMESPACES,
    ZONE,
    Json,
    RandomScheduling,
    a_scheduling_cluster,
    names_of,
    node_json,
    pod_json,
    read_pod,
)

NODES = (node_json("n1", labels={ZONE: "a"}), node_json("n2", labels={ZONE: "b"}))


def with_claim(name: str, **facts: Any) -> Json:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return pod_json(name, volumes=[volume], **facts)


def cluster_with(
    *pods: Json, nodes: tuple[Json, ...] = NODES, modes: str = "ReadWriteMany", **volume: Any
) -> SchedulingCluster:
    """Return a cluster whose claim *data* is bound to a volume."""
    claim = VolumeClaim(volume="pv", modes=frozenset({modes}))
    storage = Storage(claims={("default", "data"): claim}, volumes={"pv": Volume(**volume)})
    return a_scheduling_cluster(nodes, pods, storage=storage)


def allowed(cluster: SchedulingCluster, pod: Json, *changes: Change) -> set[str]:
    return names_of(cluster, allowed_nodes(cluster, read_pod(pod), changes=changes))


def test_a_node_that_is_full_takes_nothing_until_a_pod_leaves() -> None:
    old = pod_json("old", node="n1", requests={"cpu": "6"})
    cluster = cluster_with(old)

    assert allowed(cluster, old) == {"n2"}
    assert allowed(cluster, old, Change(read_pod(old), -1)) == {"n1", "n2"}
    assert refusals(cluster, read_pod(old)) == {NodeFilter.RESOURCES: 1}


def test_a_node_takes_no_more_pods_than_it_says() -> None:
    pod = pod_json("old", node="n1")
    cluster = a_scheduling_cluster([node_json("n1", pods="1")], [pod])

    assert allowed(cluster, pod_json("new")) == set()
    assert allowed(cluster, pod_json("new"), Change(read_pod(pod), -1)) == {"n1"}


def test_a_resource_that_a_node_does_not_have_is_none() -> None:
    cluster = cluster_with(nodes=(*NODES, node_json("n3", more={"example.com/x": "1"})))

    assert allowed(cluster, pod_json("new", requests={"example.com/x": "1"})) == {"n3"}


def test_a_host_port_is_taken_until_its_pod_leaves() -> None:
    port = [{"containerPort": 80, "hostPort": 80}]
    old = pod_json("old", node="n1", ports=port)
    cluster = cluster_with(old)

    assert allowed(cluster, pod_json("new", ports=port)) == {"n2"}
    assert allowed(cluster, pod_json("new", ports=port), Change(read_pod(old), -1)) == {"n1", "n2"}
    expected = read_pod(pod_json("soon", node="n2", ports=port))
    assert allowed(cluster, pod_json("new", ports=port), Change(expected, 1)) == set()


def test_a_cordoned_node_takes_only_those_that_tolerate_it() -> None:
    cluster = a_scheduling_cluster([node_json("n1", unschedulable=True)])
    tolerant = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]

    assert allowed(cluster, pod_json("new")) == set()
    assert allowed(cluster, pod_json("new", tolerations=tolerant)) == {"n1"}


def test_a_volume_ties_a_pod_to_its_zone() -> None:
    zones = {ZONE: frozenset({"b"})}
    unlabelled = node_json("n3")

    cluster = cluster_with(nodes=(*NODES, unlabelled), zones=zones)

    assert allowed(cluster, with_claim("new")) == {"n2", "n3"}


def test_a_claim_that_is_not_known_not_bound_or_being_deleted_fits_nowhere() -> None:
    bound = a_scheduling_cluster(NODES)
    deleted = Storage(
        claims={("default", "data"): VolumeClaim(volume="pv", terminating=True)},
        volumes={"pv": Volume()},
    )
    waiting = a_scheduling_cluster(
        NODES, storage=Storage(claims={("default", "data"): VolumeClaim()})
    )

    assert allowed(bound, with_claim("new")) == set()
    assert allowed(waiting, with_claim("new")) == set()
    assert allowed(a_scheduling_cluster(NODES, storage=deleted), with_claim("new")) == set()


@pytest.mark.parametrize(
    ("modes", "beside"), [("ReadWriteOncePod", set()), ("ReadWriteOnce", {"n1"})]
)
def test_a_volume_of_one_pod_or_node_is_free_elsewhere_only_once_the_old_pod_is_gone(
    modes: str, beside: set[str]
) -> None:
    old = with_claim("old", node="n1")
    cluster = cluster_with(old, modes=modes)

    assert allowed(cluster, with_claim("new")) == beside
    assert allowed(cluster, with_claim("new"), Change(read_pod(old), -1)) == {"n1", "n2"}


@pytest.mark.parametrize("seed", range(6))
def test_counting_a_change_is_as_if_the_pods_were_so(seed: int) -> None:
    source = RandomScheduling(seed)
    nodes, pods = source.nodes(8), source.pods(24, prefix="bound")
    for number, pod in enumerate(pods):
        pod["spec"]["nodeName"] = f"node-{number % 8}"
    cluster = a_scheduling_cluster(nodes, pods, namespaces=NAMESPACES)
    changed = 0
    for number, (gone, asked) in enumerate(zip(pods, source.pods(24, prefix="asked"), strict=True)):
        soon = {**asked, "spec": {**asked["spec"], "nodeName": f"node-{number % 5}"}}
        others = [pod for pod in pods if pod is not gone]
        fresh = a_scheduling_cluster(nodes, [*others, soon], namespaces=NAMESPACES)
        changes = (Change(read_pod(gone), -1), Change(read_pod(soon), 1))
        for body in (gone, asked):
            placing = read_pod(body)
            found = allowed_nodes(cluster, placing, changes=changes)
            assert (found == allowed_nodes(fresh, placing)).all()
            changed += int((found != allowed_nodes(cluster, placing)).any())
    assert changed, "some change decides"


def test_each_node_is_told_which_of_the_filters_asked_for_refuse_it() -> None:
    cluster = a_scheduling_cluster(NODES)
    pod = read_pod(pod_json("p", nodeSelector={ZONE: "a"}))

    assert refusals_by_node(cluster, pod, rules=frozenset(NodeFilter)) == {
        "n2": (NodeFilter.NODE_AFFINITY,)
    }
    assert refusals_by_node(cluster, pod, rules=frozenset({NodeFilter.PORTS})) == {}
