"""Deployments, ReplicaSets and StatefulSets: how many pods they want, and whether they settled."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.workloads.workload import (
    Workload,
    read_deployment,
    read_replicaset,
    read_statefulset,
)

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
