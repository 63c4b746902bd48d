"""A pod as the simulated kubelet reads it and reports it."""

import json
from typing import Any

import pytest

from simulator.kubelet.pod_status import (
    ContainerPlan,
    KubeletPod,
    number,
    pod_status,
    read_kubelet_pod,
)
from tests.support.gpu import a_gpu_pod

WHO = {"uid": "u"}


def test_a_pod_is_read_with_what_its_containers_want() -> None:
    body = a_gpu_pod("one", mib=500, cards=2)
    (app,) = body["spec"]["containers"]
    body["metadata"] |= WHO
    body["spec"]["initContainers"] = [
        {**app, "name": "prepare"},
        {"name": "proxy", "restartPolicy": "Always"},
    ]

    pod = read_kubelet_pod(json.dumps(body).encode())

    wants = {"fracgpu.io/gpu-mem": 1000, "fracgpu.io/gpu-slot": 2}
    assert pod.containers == (
        ContainerPlan(name="prepare", init=True, wants=wants),
        ContainerPlan(name="proxy", sidecar=True),
        ContainerPlan(name="train", wants=wants),
    )
    assert pod.listed_containers == ("proxy", "train")


def test_a_status_shows_each_container_and_readiness_only_when_running() -> None:
    pod = KubeletPod(
        uid="u",
        namespace="ml",
        name="one",
        containers=(ContainerPlan(name="prepare", init=True), ContainerPlan(name="train")),
    )
    states: dict[str, dict[str, Any]] = {
        "prepare": {"terminated": {"exitCode": 0}},
        "train": {"running": {}},
    }

    running = pod_status(pod, phase="Running", started_at="t", states=states, restarts={"train": 2})
    pending = pod_status(pod, phase="Pending", started_at="t", states={}, restarts={})

    conditions = {condition["type"]: condition["status"] for condition in running["conditions"]}
    assert conditions["Ready"] == "True"
    (app,) = running["containerStatuses"]
    assert (app["name"], app["ready"], app["restartCount"]) == ("train", True, 2)
    assert [container["name"] for container in running["initContainerStatuses"]] == ["prepare"]
    assert {condition["type"]: condition["status"] for condition in pending["conditions"]}[
        "Ready"
    ] == "False"
    assert pending["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.8", 0.8),
        ("3", 3.0),
        (None, None),
        ("x", None),
        ("nan", None),
        ("-1", None),
        ("inf", None),
    ],
)
def test_a_number_in_an_annotation_is_plain_and_not_negative(
    text: str | None, value: float | None
) -> None:
    assert number(text) == value


def test_something_else_is_no_pod() -> None:
    with pytest.raises(ValueError, match="metadata"):
        read_kubelet_pod(b'{"metadata": 1}')
