"""What cluster-autoscaler decides in one loop."""

from typing import Any

from tests.fakes.cluster_autoscaler import (
    ClusterAutoscaler,
    Decision,
    NodeGroup,
    template_of,
)

Json = dict[str, Any]
TAG = "k8s.io/cluster-autoscaler/node-template"
BASE: Json = {
    "metadata": {"labels": {"zone": "a"}},
    "status": {"capacity": {"pods": "10"}, "allocatable": {"pods": "10"}},
}


def a_group(name: str, **tags: str) -> NodeGroup:
    known = {f"{TAG}/resources/x.io/slot": "2", f"{TAG}/label/group": name, **tags}
    return NodeGroup(name=name, template=template_of(name, BASE, known))


def a_node(group: NodeGroup, name: str, *, taint: str = "", ready: str = "True") -> Json:
    template = group.template
    return {
        "metadata": {"name": name, "labels": template["metadata"]["labels"]},
        "spec": {
            "providerID": f"simulated://{group.name}/{name}",
            "taints": [{"key": taint, "effect": "NoSchedule"}] if taint else [],
        },
        "status": {**template["status"], "conditions": [{"type": "Ready", "status": ready}]},
    }


def a_pod(name: str, *, on: str = "", slots: int = 1, **selector: str) -> Json:
    resources = {"requests": {"x.io/slot": str(slots)}}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "c", "resources": resources}],
            "nodeSelector": selector,
            **({"nodeName": on} if on else {}),
        },
        "status": {"phase": "Running"} if on else {"conditions": [refused]},
    }


def an_autoscaler(*groups: NodeGroup) -> ClusterAutoscaler:
    return ClusterAutoscaler(groups={group.name: group for group in groups}, unneeded_s=60)


def test_the_group_that_serves_most_pods_grows_by_what_they_take() -> None:
    scaler = an_autoscaler(a_group("a"), a_group("b"))
    pods = [a_pod("p1", group="a"), *(a_pod(f"q{number}", group="b") for number in range(3))]

    assert scaler.loop([], pods, now_s=0) == Decision(increase=("b", 2))
    assert scaler.loop([], pods, now_s=10) == Decision(increase=("a", 1))
    assert scaler.loop([], pods, now_s=20) == Decision()


def test_a_pod_that_no_template_fits_wakes_nothing() -> None:
    tainted = a_group("a", **{f"{TAG}/taint/gpu": "present:NoSchedule"})
    scaler = an_autoscaler(tainted, a_group("b"))

    pods = [a_pod("p", group="a"), a_pod("q", group="c"), a_pod("r", slots=3)]
    assert scaler.loop([], pods, now_s=0) == Decision()


def test_a_node_with_a_startup_taint_counts_as_one_that_still_comes() -> None:
    group = a_group("a")
    scaler = an_autoscaler(group)
    pods = [a_pod("p")]
    scaler.loop([], pods, now_s=0)
    starting = a_node(group, "n", taint="startup-taint.cluster-autoscaler.kubernetes.io/x")
    starting["status"]["allocatable"] = {"pods": "10"}
    assert scaler.loop([starting], pods, now_s=10) == Decision()

    # Without it the node is there and does not help.
    starting["spec"]["taints"] = []
    assert scaler.loop([starting], pods, now_s=20) == Decision(increase=("a", 1))


def test_a_node_that_is_not_ready_still_comes() -> None:
    group = a_group("a")
    scaler = an_autoscaler(group)
    scaler.loop([], [a_pod("p")], now_s=0)

    assert scaler.loop([a_node(group, "n", ready="False")], [a_pod("p")], now_s=10) == Decision()


def test_a_node_goes_when_it_was_idle_for_long_enough() -> None:
    group = a_group("a")
    group.target = 2
    scaler = an_autoscaler(group)
    nodes = [a_node(group, "idle"), a_node(group, "busy")]
    pods = [a_pod("p", on="busy")]

    assert scaler.loop(nodes, pods, now_s=0) == Decision()
    assert scaler.loop(nodes, pods, now_s=59) == Decision()
    assert scaler.loop(nodes, pods, now_s=60) == Decision(remove=("idle",))
    assert group.target == 1


def test_a_group_has_no_more_nodes_than_it_may() -> None:
    group = a_group("a")
    group.most = 1
    pods = [a_pod(f"p{number}") for number in range(5)]

    assert an_autoscaler(group).loop([], pods, now_s=0) == Decision(increase=("a", 1))
