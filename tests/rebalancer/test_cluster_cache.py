"""The rebalancer's cache of pods and nodes follows the API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fracgpu.k8s.node import Taint
from kube.client import KubeClient
from kube.kinds import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
)
from rebalancer.cluster_cache import ClusterCache
from tests.fakes.clock import NOON
from tests.support.moving import NAMESPACE, add_budget, add_pod, end_pod, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD
from tests.support.waiting import until_true


@pytest.fixture
async def cache(kube: KubeClient) -> AsyncIterator[ClusterCache]:
    await make_cluster(kube)
    found = ClusterCache(kube)
    assert not found.synced
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in found.tasks().values()]
        await found.wait_synced()
        yield found
        for task in tasks:
            task.cancel()


def held_mib(cache: ClusterCache) -> int:
    load = cache.snapshot(now=NOON).card(HOT_CARD)
    return int(load.held_mib) if load else -1


async def test_pods_and_cards_are_there_once_synced(cache: ClusterCache) -> None:
    assert cache.synced
    assert cache.cards() == {HOT_CARD: "n1", COOL_CARD: "n2"}
    assert sorted(pod.info.record.name for pod in cache.placed_pods.values()) == [
        "pod-a",
        "pod-b",
    ]
    assert held_mib(cache) == 8000


async def test_a_pod_that_ends_holds_nothing_and_a_new_one_does(
    kube: KubeClient, cache: ClusterCache
) -> None:
    await end_pod(kube, "pod-a")
    await until_true(lambda: held_mib(cache) == 4000, what="the memory is free again")
    assert len(cache.placed_pods) == 1

    done = {"status": {"phase": "Succeeded"}}
    await kube.patch(PODS, "pod-b", done, namespace=NAMESPACE, subresource="status")
    await until_true(lambda: not cache.placed_pods, what="a finished pod occupies nothing")

    await add_pod(kube, "pod-c", mib=1000)
    await until_true(lambda: held_mib(cache) == 1000, what="the new pod is counted")


async def test_of_pods_that_come_and_go_before_anybody_asks_nothing_is_kept(
    kube: KubeClient, cache: ClusterCache
) -> None:
    (gone,) = (uid for uid, pod in cache.placed_pods.items() if pod.info.record.name == "pod-a")
    await end_pod(kube, "pod-a")
    await until_true(lambda: held_mib(cache) == 4000, what="the pod is gone")
    first = cache.take_bound_changes()
    assert gone not in first

    (known,) = cache.placed_pods
    assert first[known] is not None
    await end_pod(kube, "pod-b")
    await until_true(lambda: not cache.placed_pods, what="the other pod is gone")
    assert cache.take_bound_changes() == {known: None}


async def test_pods_without_a_share_are_not_kept(kube: KubeClient, cache: ClusterCache) -> None:
    plain = {
        "metadata": {"name": "plain", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    await kube.create(PODS, plain)
    await add_pod(kube, "pod-c", card=COOL_CARD, node="n2")

    await until_true(lambda: len(cache.placed_pods) == 3, what="the pod after it is there")

    assert "plain" not in {pod.info.record.name for pod in cache.placed_pods.values()}


async def test_taints_sharing_and_vanishing_of_nodes_are_followed(
    kube: KubeClient, cache: ClusterCache
) -> None:
    spec = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    await kube.patch(NODES, "n2", {"spec": spec})
    taint = (Taint(key="team", value="ml"),)

    def tainted() -> bool:
        return any(node.taints == taint for node in cache.scheduling().nodes)

    await until_true(tainted, what="the taint")

    await kube.patch(NODES, "n2", {"metadata": {"labels": {"fracgpu.io/share": "false"}}})
    await until_true(lambda: COOL_CARD not in cache.cards(), what="the node stops sharing")

    await kube.delete(NODES, "n2")
    await until_true(lambda: set(cache.nodes) == {"n1"}, what="the node is gone")
    assert "n2" not in cache.snapshot(now=NOON).nodes


async def test_all_pods_count_for_the_filters_of_kube_scheduler(
    kube: KubeClient, cache: ClusterCache
) -> None:
    plain = {
        "metadata": {"name": "plain", "namespace": NAMESPACE},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "a", "image": "x", "resources": {"requests": {"cpu": "2"}}}],
        },
    }
    before = cache.scheduling().free("cpu").tolist()

    await kube.create(PODS, plain)
    await until_true(lambda: cache.scheduling().free("cpu").tolist() != before, what="the pod")
    assert cache.scheduling().free("cpu").tolist() == [before[0] - 2000, before[1]]

    await kube.delete(PODS, "plain", namespace=NAMESPACE, grace_s=0)
    await until_true(lambda: cache.scheduling().free("cpu").tolist() == before, what="it is gone")


async def test_what_guards_pods_is_followed(kube: KubeClient, cache: ClusterCache) -> None:
    assert cache.workloads().unknown == ()
    (owner,) = cache.workloads().workloads.values()
    assert (owner.name, owner.desired, owner.ready, owner.rolling_out) == ("web", 2, 2, False)

    await add_budget(kube, allowed=1)
    quota = {"metadata": {"name": "q", "namespace": NAMESPACE}, "spec": {"hard": {"pods": "2"}}}
    await kube.create(RESOURCE_QUOTAS, quota)
    service = {
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "web"}},
    }
    await kube.create(SERVICES, service)

    def all_there() -> bool:
        found = cache.workloads()
        guards = (found.budgets, found.quotas, found.services)
        return all(len(kind.of(NAMESPACE)) == 1 for kind in guards)

    await until_true(all_there, what="budget, quota and Service are known")


async def test_claims_and_volumes_are_followed(kube: KubeClient, cache: ClusterCache) -> None:
    volume = {"metadata": {"name": "pv"}, "spec": {"local": {"path": "/disk"}}}
    claim = {
        "metadata": {"name": "data", "namespace": NAMESPACE},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
    }
    await kube.create(PERSISTENT_VOLUMES, volume)
    await kube.create(PERSISTENT_VOLUME_CLAIMS, claim)

    def both_there() -> bool:
        storage = cache.scheduling().storage
        return (NAMESPACE, "data") in storage.claims and "pv" in storage.volumes

    await until_true(both_there, what="claim and volume are known")
    assert cache.scheduling().namespaces.keys() >= {NAMESPACE}
