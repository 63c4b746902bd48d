from __future__ import annotations

import pytest

from kube.client import Propagation
from kube.errors import KubeError, NotFound
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, REPLICASETS
from tests.simulator.controllers.world import World, a_template, an_owner
from tests.support.objects import a_config
from tests.support.waiting import until


async def test_what_a_deleted_owner_leaves_behind_is_deleted(world: World) -> None:
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=2), namespace=world.namespace)
    await world.wait_count(2)

    await world.kube.delete(DEPLOYMENTS, "web", namespace=world.namespace)

    await world.wait_count(0)
    listed = await world.kube.list(REPLICASETS, namespace=world.namespace)
    assert listed.items == []


async def test_a_pod_of_an_owner_that_never_was_is_deleted(world: World) -> None:
    stray = {
        "metadata": {
            "name": "stray",
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "no-such-uid"}
            ],
        },
        "spec": a_template("x")["spec"],
    }

    await world.kube.create(PODS, stray, namespace=world.namespace)

    await world.wait_count(0)


async def test_a_pod_of_a_stranger_is_left_alone(world: World) -> None:
    owned = {
        "metadata": {
            "name": "theirs",
            "ownerReferences": [
                {"apiVersion": "example.org/v1", "kind": "Thing", "name": "t", "uid": "u"}
            ],
        },
        "spec": a_template("x")["spec"],
    }
    await world.kube.create(PODS, owned, namespace=world.namespace)
    owned["metadata"] = {
        "name": "ours",
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}],
    }
    await world.kube.create(PODS, owned, namespace=world.namespace)

    await world.wait_count(1)

    assert await world.names() == {"theirs"}


async def test_orphaned_pods_stay(world: World) -> None:
    await world.kube.create(REPLICASETS, an_owner("a", replicas=2), namespace=world.namespace)
    await world.wait_count(2)

    await world.kube.delete(
        REPLICASETS, "a", namespace=world.namespace, propagation=Propagation.ORPHAN
    )

    async def gone() -> bool:
        return await world.get(REPLICASETS, "a") is None

    await until(gone, what="the end of the ReplicaSet")
    pods = await world.pods()
    assert [pod["metadata"].get("ownerReferences") for pod in pods] == [None, None]


async def test_in_the_foreground_the_owner_goes_last(world: World) -> None:
    job = {
        "metadata": {"name": "j"},
        "spec": {"template": a_template("job", restartPolicy="Never")},
    }
    await world.kube.create(JOBS, job, namespace=world.namespace)
    (pod,) = await world.wait_count(1)
    name = pod["metadata"]["name"]
    await world.kube.bind({"target": {"name": "n1"}}, namespace=world.namespace, name=name)

    await world.kube.delete(
        JOBS, "j", namespace=world.namespace, propagation=Propagation.FOREGROUND
    )

    await world.wait_object(
        PODS, name, lambda pod: "deletionTimestamp" in pod["metadata"], what="an ending pod"
    )
    assert await world.get(JOBS, "j") is not None
    await world.kube.delete(PODS, name, namespace=world.namespace, grace_s=0)

    async def gone() -> bool:
        return await world.get(JOBS, "j") is None

    await until(gone, what="the end of the job")


async def test_a_namespace_is_emptied_before_it_goes(world: World) -> None:
    await world.kube.create(NAMESPACES, {"metadata": {"name": "ml"}})
    await world.kube.create(CONFIGMAPS, a_config("a"), namespace="ml")
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace="ml")

    await world.kube.delete(NAMESPACES, "ml")
    with pytest.raises(KubeError, match="being terminated"):
        await world.kube.create(CONFIGMAPS, a_config("b"), namespace="ml")

    async def gone() -> bool:
        try:
            await world.kube.get(NAMESPACES, "ml")
        except NotFound:
            return True
        return False

    await until(gone, what="the end of the namespace")
    assert (await world.kube.list(CONFIGMAPS, namespace="ml")).items == []
    assert (await world.kube.list(PODS, namespace="ml")).items == []
