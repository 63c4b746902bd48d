"""Deployments, ReplicaSets and StatefulSets: how many pods they want, and whether they settled."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.workloads.quota import ResourceQuota, quota_usage, read_quota
from fracgpu.k8s.workloads.service_selector import ServiceSelector, read_service_selector
from fracgpu.k8s.workloads.workload import (
    Workload,
    read_deployment,
    read_replicaset,
    read_statefulset,
)
from fracgpu.k8s.workloads.workload_state import ByNamespace, WorkloadState

SETTLED = {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "observedGeneration": 2}


def body(*, status: dict[str, Any] | None = None, **spec: Any) -> bytes:
    return json.dumps(
        {
            "metadata": {
                "name": "web",
                "namespace": "ml",
                "uid": "u1",
                "generation": 2,
                "ownerReferences": [
                    {"kind": "Other", "uid": "u8"},
                    {"kind": "Deployment", "uid": "u9", "controller": True},
                ],
            },
            "spec": {"replicas": 3, **spec},
            "status": {**SETTLED, **(status or {})},
        }
    ).encode()


def test_a_settled_workload_is_not_rolling_out() -> None:
    for read in (read_deployment, read_replicaset, read_statefulset):
        found = read(body())
        assert isinstance(found, Workload)
        assert (found.desired, found.ready, found.owner, found.owner_kind) == (
            3,
            3,
            "u9",
            "Deployment",
        )
        assert not found.rolling_out


@pytest.mark.parametrize(
    "status",
    [{"updatedReplicas": 2}, {"replicas": 4}, {"replicas": 2}, {"observedGeneration": 1}],
)
def test_a_deployment_between_two_templates_or_sizes_is_rolling_out(
    status: dict[str, int],
) -> None:
    assert read_deployment(body(status=status)).rolling_out


def test_a_statefulset_between_two_revisions_is_rolling_out() -> None:
    status = {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 1}

    assert read_statefulset(body(status=status)).rolling_out
    assert not read_statefulset(body(status={**status, "updateRevision": "a"})).rolling_out


def test_a_deployment_that_is_being_scaled_is_rolling_out_and_its_pods_are_updated() -> None:
    """The planner leaves it alone; a move under way, which changes the number itself, goes on."""
    being_scaled = read_deployment(
        body(replicas=3, status={"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2})
    )
    replaced = read_deployment(
        body(replicas=2, status={"replicas": 2, "updatedReplicas": 1, "readyReplicas": 2})
    )

    assert (being_scaled.updated, being_scaled.rolling_out) == (True, True)
    assert (replaced.updated, replaced.rolling_out) == (False, True)


def test_one_replica_is_the_default() -> None:
    assert read_deployment(body(replicas=None)).desired == 1


def test_the_replicaset_of_an_old_rollout_is_not_kept() -> None:
    assert read_replicaset(body(replicas=0, status={"replicas": 0})) is None
    assert read_replicaset(body(replicas=0)) is not None


def test_a_paused_deployment_and_one_that_recreates_are_told() -> None:
    found = read_deployment(body(paused=True, strategy={"type": "Recreate"}))

    assert (found.paused, found.recreate) == (True, True)


@pytest.mark.parametrize("read", [read_deployment, read_replicaset, read_statefulset])
def test_what_is_no_object_is_refused(read: Any) -> None:
    with pytest.raises(WireError):
        read(b"[]")


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


def test_a_limit_that_cannot_be_read_is_exceeded() -> None:
    assert quota({"pods": "many"}, {}).exceeded_by(POD) == "pods"
    assert quota({"pods": "5"}, {"pods": "many"}).exceeded_by(POD) == "pods"


def test_what_is_no_quota_is_refused() -> None:
    with pytest.raises(WireError):
        read_quota(b"[]")


def workload(uid: str, *, owner: str = "") -> Workload:
    return Workload(
        uid=uid,
        kind="ReplicaSet",
        namespace="ml",
        name=uid,
        owner=owner,
        desired=1,
        ready=1,
        current=1,
        total=1,
    )


def test_the_controller_of_a_pod_is_followed_to_its_own() -> None:
    inner, outer = workload("rs", owner="deploy"), workload("deploy")
    state = WorkloadState(workloads={"rs": inner, "deploy": outer})

    assert state.controllers_of("rs") == (inner, outer)
    assert state.controllers_of("deploy") == (outer,)
    assert state.controllers_of("unknown") == ()


def test_guards_are_found_by_namespace() -> None:
    service = ServiceSelector(namespace="ml", name="web", labels={})

    assert ByNamespace([service]).of("ml") == [service]
    assert list(ByNamespace([service]).of("other")) == []


def test_a_service_selects_by_labels_in_its_namespace() -> None:
    body = {"metadata": {"name": "web", "namespace": "ml"}, "spec": {"selector": {"app": "web"}}}

    found = read_service_selector(json.dumps(body).encode())

    assert found.selects("ml", {"app": "web", "tier": "x"})
    assert not found.selects("ml", {"app": "db"})
    assert not found.selects("other", {"app": "web"})


def test_a_service_without_a_selector_selects_nothing() -> None:
    assert not read_service_selector(b'{"metadata": {"namespace": "ml"}}').selects("ml", {})


def test_what_is_no_service_is_refused() -> None:
    with pytest.raises(WireError):
        read_service_selector(b"[]")
