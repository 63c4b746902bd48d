"""How the commands read the API server's pods and nodes."""

import json
from typing import Any

from cli.cluster import ObservedCluster, cluster_state_of, read_seen_node, read_subject, snapshot_of
from fracgpu import names
from fracgpu.k8s.node_affinity import Taint
from fracgpu.request.need import Strategy
from tests.support.explaining import NOON
from tests.support.gpu import a_gpu_pod, a_sharing_node


def seen(node: dict[str, Any]) -> Any:
    return read_seen_node(json.dumps(node).encode())


def subject(pod: dict[str, Any]) -> Any:
    return read_subject(json.dumps(pod).encode())


def test_gates_taints_and_cordons_are_read() -> None:
    node = a_sharing_node("n")
    node["spec"] = {
        "unschedulable": True,
        "taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "team", "value": "a", "effect": "NoSchedule"},
        ],
    }
    pod = subject(a_gpu_pod("p", schedulingGates=[{"name": "quota"}]))
    observed = ObservedCluster(pods=(pod,), nodes=(seen(node),))

    state = cluster_state_of(
        observed, pod, schedulers=[names.SCHEDULER_NAME], strategy=Strategy.PACK, now=NOON
    )

    assert pod.gates == ("quota",)
    assert state.node_constraints["n"].cordoned
    assert state.node_constraints["n"].taints == (Taint(key="team", value="a"),)


def test_what_others_request_besides_cards_is_counted_on_their_node() -> None:
    hungry = a_gpu_pod("hungry", nodeName="n")
    hungry["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "63500m"
    asking = a_gpu_pod("asking")
    hungry["metadata"]["uid"], asking["metadata"]["uid"] = "u1", "u2"
    asking["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    pods = (subject(hungry), subject(asking))
    observed = ObservedCluster(
        pods=pods, nodes=(seen(a_sharing_node("n")), seen(a_sharing_node("m")))
    )

    state = cluster_state_of(observed, pods[1], schedulers=[], strategy=Strategy.PACK, now=NOON)

    assert state.node_constraints["n"].short == ("too little CPU: 500m free, 1000m asked",)
    assert state.node_constraints["m"].short == ()


def test_the_ledger_is_folded_as_in_the_scheduler() -> None:
    held = a_gpu_pod("p", nodeName="n", annotations={names.ASSIGNMENT: _on("GPU-n-1", 700)})
    held["metadata"]["uid"] = "u1"

    snapshot = snapshot_of([subject(held).info], [seen(a_sharing_node("n")).cards], now=NOON)

    assert [card.held_mib for card in snapshot.nodes["n"].cards.values()] == [0, 700, 0, 0]


def _on(card: str, mib: int) -> str:
    return json.dumps({"train": [{"card": card, "mib": mib}]})
