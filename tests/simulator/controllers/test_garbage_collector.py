from __future__ import annotations

from kube.kinds import DEPLOYMENTS, PODS, REPLICASETS
from tests.simulator.controllers.harness import Harness, a_template, an_owner


async def test_what_a_deleted_owner_leaves_behind_is_deleted(harness: Harness) -> None:
    await harness.kube.create(DEPLOYMENTS, an_owner("web", replicas=2), namespace=harness.namespace)
    await harness.wait_count(2)

    await harness.kube.delete(DEPLOYMENTS, "web", namespace=harness.namespace)

    await harness.wait_count(0)
    listed = await harness.kube.list(REPLICASETS, namespace=harness.namespace)
    assert listed.items == []


async def test_a_pod_of_an_owner_that_never_was_is_deleted(harness: Harness) -> None:
    stray = {
        "metadata": {
            "name": "stray",
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "r",
                    "uid": "no-such-uid",
                }
            ],
        },
        "spec": a_template("x")["spec"],
    }

    await harness.kube.create(PODS, stray, namespace=harness.namespace)

    await harness.wait_count(0)


async def test_a_pod_of_a_stranger_is_left_alone(harness: Harness) -> None:
    owned = {
        "metadata": {
            "name": "theirs",
            "ownerReferences": [
                {"apiVersion": "example.org/v1", "kind": "Thing", "name": "t", "uid": "u"}
            ],
        },
        "spec": a_template("x")["spec"],
    }
    await harness.kube.create(PODS, owned, namespace=harness.namespace)
    owned["metadata"] = {
        "name": "ours",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
        ],
    }
    await harness.kube.create(PODS, owned, namespace=harness.namespace)

    await harness.wait_count(1)

    assert await harness.names() == {"theirs"}
