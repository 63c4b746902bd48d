"""The rebalancer's cache of pods and nodes follows the API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from component.wiring import Wiring, Wirings
from fracgpu import names
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.quota import MEMORY
from fracgpu.k8s.node import Taint
from fracgpu.request.need import DEFAULT_STRATEGY
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import (
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    SERVICES,
)
from kube.objects import encode
from rebalancer.cluster_cache import ClusterCache
from tests.fakes.clock import NOON
from tests.support.claims import a_claiming_pod, allocated, claim_name
from tests.support.gpu import Json, register
from tests.support.moving import NAMESPACE, add_budget, add_pod, end_pod, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD
from tests.support.waiting import until_true

BY_CLAIMS: Final = Wirings(default=Wiring.CLAIMS)


@pytest.fixture
async def cache(kube: KubeClient) -> AsyncIterator[ClusterCache]:
    await make_cluster(kube)
    async with following(kube, Wirings()) as found:
        yield found


@asynccontextmanager
async def following(kube: KubeClient, wirings: Wirings) -> AsyncIterator[ClusterCache]:
    found = ClusterCache(kube, wirings)
    assert found.problem == "the API server has not listed pods yet"
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
    assert cache.problem is None
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


async def test_it_is_known_whether_new_pods_of_a_namespace_get_claims(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with following(kube, Wirings(both=True)) as cache:
        wanted: list[tuple[str | None, bool | None]]
        wanted = [("claims", True), ("devicePlugin", False), (None, False), ("neither", None)]
        for label, claims in wanted:
            labels = {"metadata": {"labels": {names.WIRING_LABEL: label}}}
            await kube.patch(NAMESPACES, NAMESPACE, labels)

            def known(claims: bool | None = claims) -> bool:
                return claims_in(cache) is claims

            await until_true(known, what=f"the label {label}")


def claims_in(cache: ClusterCache) -> bool | None:
    state = cache.disruption_state(
        usage={},
        heat={},
        past=(),
        strategy=DEFAULT_STRATEGY,
        scheduler_name=names.SCHEDULER_NAME,
        leading_since=NOON,
        now=NOON,
    )
    return state.claims_in[NAMESPACE]


async def a_claimed_pod(kube: KubeClient, name: str) -> Json:
    """Create a pod that is bound with a claim of the hot card; returns the claim, not created."""
    body = a_claiming_pod(name, 4_000, claim=claim_name(name), nodeName="n1")
    created = await kube.create(PODS, body)
    info = decode_pod_info(encode(created))
    assert info.need is not None
    claim = claim_of(info.record, claim_name(name), info.need, {"train": [HOT_CARD]})
    return allocated(claim, {"train": [HOT_CARD]}, node="n1", pod=info.record)


async def create_claim(kube: KubeClient, claim: Json) -> None:
    await kube.create(RESOURCE_CLAIMS, claim, namespace="default")
    name, status = claim["metadata"]["name"], {"status": claim["status"]}
    await kube.patch(RESOURCE_CLAIMS, name, status, namespace="default", subresource="status")


async def test_a_pod_holds_what_its_claim_was_allocated_until_the_claim_is_gone(
    kube: KubeClient,
) -> None:
    await make_cluster(kube, pods=0)
    limit = {"metadata": {"name": "q"}, "spec": {"hard": {MEMORY: "10000"}}}
    await kube.create(RESOURCE_QUOTAS, limit, namespace="default")
    async with following(kube, BY_CLAIMS) as cache:
        claim = await a_claimed_pod(kube, "pod-c")
        await until_true(lambda: bool(cache.placed_pods), what="the pod")
        assert held_mib(cache) == 0

        await create_claim(kube, claim)
        await until_true(lambda: held_mib(cache) == 4_000, what="what its claim holds")
        (pod,) = cache.placed_pods.values()
        assert pod.info.record.assignment == {"train": (Slice(card=HOT_CARD, mib=Mib(4_000)),)}
        assert [bound and bound.allocation.by_card for bound in cache.take_bound_changes().values()]
        (quota,) = cache.workloads().quotas.of("default")
        assert quota.left[MEMORY] == 6_000

        # kube-scheduler counts a claim until it is gone, whatever has become of its pod.
        await kube.delete(PODS, "pod-c", namespace="default", grace_s=0)
        await until_true(lambda: not cache.placed_pods, what="the pod is gone")
        assert held_mib(cache) == 4_000
        await kube.delete(RESOURCE_CLAIMS, claim_name("pod-c"), namespace="default")
        await until_true(lambda: held_mib(cache) == 0, what="its claim is gone")


async def test_a_claim_of_another_namespace_takes_nothing_from_a_pod_that_was_assigned_a_card(
    kube: KubeClient,
) -> None:
    await make_cluster(kube)
    info = decode_pod_info(encode(await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)))
    assert info.need is not None
    forged = claim_of(info.record, claim_name("pod-a"), info.need, {"train": [HOT_CARD]})
    forged["metadata"]["namespace"] = "default"
    async with following(kube, Wirings(both=True)) as cache:
        before = held_mib(cache)

        await create_claim(kube, allocated(forged, {"train": [HOT_CARD]}, node="n1"))

        await until_true(lambda: held_mib(cache) == before + 4_000, what="it counts besides")


async def test_claims_pods_and_nodes_are_joined_in_whatever_order_they_come(
    kube: KubeClient,
) -> None:
    await make_cluster(kube, pods=0)
    node = await kube.get_object(NODES, "n1")
    claim = await a_claimed_pod(kube, "pod-c")
    await create_claim(kube, claim)
    await kube.delete(NODES, "n1")
    async with following(kube, BY_CLAIMS) as cache:
        (pod,) = cache.placed_pods.values()
        assert pod.info.record.problem

        for field in ("uid", "resourceVersion", "creationTimestamp"):
            node["metadata"].pop(field, None)
        await register(kube, node)
        await until_true(lambda: held_mib(cache) == 4_000, what="the card of its claim")
        (pod,) = cache.placed_pods.values()
        assert not pod.info.record.problem
