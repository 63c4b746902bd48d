"""Pods and nodes as the filters see them."""

import json

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.node_affinity import Taint
from fracgpu.k8s.scheduling.objects import read_scheduled_pod, read_scheduling_node
from tests.support.scheduling import HOST, node_json, pod_json, read_pod


def test_only_a_pod_with_a_node_that_has_not_ended_counts() -> None:
    ended = {**pod_json("p", node="n"), "status": {"phase": "Failed"}}

    assert read_scheduled_pod(json.dumps(pod_json("p")).encode()) is None
    assert read_scheduled_pod(json.dumps(ended).encode()) is None


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

    found = read_scheduling_node(json.dumps(body).encode())

    assert found.labels == {HOST: "n"}
    assert found.taints == (Taint(key="x", effect="NoExecute"),)
    assert found.unschedulable
    assert found.allocatable["cpu"] == 8000


@pytest.mark.parametrize("read", [read_scheduled_pod, read_scheduling_node])
def test_what_is_no_object_is_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(WireError):
        read(b"[]")
