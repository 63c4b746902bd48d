from __future__ import annotations

import pytest

from kube.errors import KubeError, NotFound
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, NAMESPACES, PODS
from tests.simulator.controllers.harness import Harness, a_template, an_owner
from tests.support.objects import a_config
from tests.support.waiting import until


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


async def test_a_namespace_is_emptied_before_it_goes(harness: Harness) -> None:
    await harness.kube.create(NAMESPACES, {"metadata": {"name": "ml"}})
    await harness.kube.create(CONFIGMAPS, a_config("a"), namespace="ml")
    await harness.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace="ml")

    await harness.kube.delete(NAMESPACES, "ml")
    with pytest.raises(KubeError, match="being terminated"):
        await harness.kube.create(CONFIGMAPS, a_config("b"), namespace="ml")

    async def gone() -> bool:
        try:
            await harness.kube.get(NAMESPACES, "ml")
        except NotFound:
            return True
        return False

    await until(gone, what="the end of the namespace")
    assert (await harness.kube.list(CONFIGMAPS, namespace="ml")).items == []
    assert (await harness.kube.list(PODS, namespace="ml")).items == []
