"""Whether one more pod would exceed a quota."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.workloads.quota import ResourceQuota, quota_usage, read_quota

GPU_MEM = "fracgpu.io/gpu-mem"
POD = quota_usage(
    [
        ContainerSpec(name="init", kind=ContainerKind.INIT, requests={"cpu": "3"}),
        ContainerSpec(
            name="a", requests={"cpu": "500m", "memory": "1Gi"}, limits={"memory": "2Gi"}
        ),
        ContainerSpec(name="b", limits={GPU_MEM: "4000", "cpu": "1"}),
    ]
)


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> ResourceQuota:
    body = {
        "metadata": {"name": "q", "namespace": "ml"},
        "spec": {"hard": hard, **spec},
        "status": {"used": used},
    }
    return read_quota(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("resource", "hard", "used", "exceeded"),
    [
        ("pods", "5", "4", False),
        ("pods", "5", "5", True),
        ("count/pods", "5", "5", True),
        (f"requests.{GPU_MEM}", "8000", "4000", False),
        (f"requests.{GPU_MEM}", "8000", "4001", True),
        ("requests.cpu", "3", "0", False),
        ("cpu", "3", "1m", True),
        ("limits.cpu", "1", "0", False),
        ("limits.memory", "3Gi", "1Gi", False),
        ("requests.memory", "1Gi", "1", True),
        ("services", "0", "9", False),
    ],
)
def test_one_more_pod_counts_by_every_name(
    resource: str, hard: str, used: str, exceeded: bool
) -> None:
    found = quota({resource: hard}, {resource: used}).exceeded_by(POD)

    assert found == (resource if exceeded else "")


def test_a_quota_that_was_never_used_is_free() -> None:
    assert quota({"pods": "1"}, {}).exceeded_by(POD) == ""


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating"]}, True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]
                }
            },
            True,
        ),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes_and_those_that_cannot_be_told(
    spec: dict[str, Any], counts: bool
) -> None:
    assert bool(quota({"pods": "1"}, {"pods": "1"}, **spec).exceeded_by(POD)) is counts


def test_a_pod_with_a_card_and_no_cpu_is_best_effort() -> None:
    pod = quota_usage([ContainerSpec(name="a", limits={GPU_MEM: "1"})])
    full = {"pods": "1"}

    assert quota(full, full, scopes=["BestEffort"]).exceeded_by(pod) == "pods"
    assert quota(full, full, scopes=["NotBestEffort"]).exceeded_by(pod) == ""


def test_an_amount_that_cannot_be_read_fits_no_quota() -> None:
    pod = quota_usage([ContainerSpec(name="a", requests={"cpu": "a lot"})])

    assert quota({"cpu": "1000"}, {}).exceeded_by(pod) == "cpu"


def test_what_is_no_quota_is_refused() -> None:
    with pytest.raises(WireError):
        read_quota(b"[]")
    with pytest.raises(WireError):
        quota({"pods": "many"}, {})
