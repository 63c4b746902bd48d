from __future__ import annotations

from kube.kinds import PODS
from tests.simulator.controllers.harness import Harness, a_template


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
