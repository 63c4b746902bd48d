"""Pods and nodes as the filters see them."""

import json

from fracgpu.k8s.node import decode_node
from fracgpu.k8s.node_affinity import Taint
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import ANYWHERE
from fracgpu.k8s.scheduling.objects import scheduled_pod_of, scheduling_node_of
from tests.support.scheduling import HOST, node_json, pod_json, read_pod


def test_only_a_pod_with_a_node_that_has_not_ended_counts() -> None:
    ended = {**pod_json("p", node="n"), "status": {"phase": "Failed"}}

    for body in (pod_json("p"), ended):
        assert scheduled_pod_of(decode_pod(json.dumps(body).encode()), ANYWHERE) is None


def test_a_pod_keeps_what_decides() -> None:
    body = pod_json("p", node="n", labels={"app": "web"}, requests={"cpu": "1"})
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    found = read_pod(body)

    assert (found.uid, found.namespace, found.node) == ("uid-default-p", "default", "n")
    assert found.terminating
    assert found.constraints.requests == (("cpu", 1000),)


def test_replicas_share_their_labels() -> None:
    first, second = (read_pod(pod_json(name, labels={"app": "web"})) for name in "ab")

    assert first.labels is second.labels


def test_a_node_keeps_what_decides() -> None:
    body = node_json("n", taints=[{"key": "x", "effect": "NoExecute"}], unschedulable=True)

    found = scheduling_node_of(decode_node(json.dumps(body).encode()))

    assert found.labels == {HOST: "n"}
    assert found.taints == (Taint(key="x", effect="NoExecute"),)
    assert found.unschedulable
    assert found.allocatable["cpu"] == 8000
