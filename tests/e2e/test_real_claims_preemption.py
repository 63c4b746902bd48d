"""On a real control plane: pods of lower priority make room, and quotas of MiB hold."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from kube.kinds import LEASES, PDBS, RESOURCE_QUOTAS, Kind
from tests.support.claims import a_claiming_pod
from tests.support.gpu import some_cards
from tests.support.real_claims import ClaimsCluster, create_all, delete_pod, real_claims
from tests.support.replicas import replica
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PRIORITY_CLASSES: Final = Kind(
    "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False
)
CARDS = {name: some_cards(name, count=1, mib=24_000) for name in ("n1", "n2")}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimsCluster]:
    async with real_claims(tmp_path, CARDS) as started:
        for name, value, policy in (
            ("high", 1_000, "PreemptLowerPriority"),
            ("patient", 1_000, "Never"),
        ):
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            await started.client.create(PRIORITY_CLASSES, body)
        yield started


def a_pod(name: str, mib: int = 20_000, *, app: str = "", **spec: Any) -> dict[str, Any]:
    pod = a_claiming_pod(name, mib, terminationGracePeriodSeconds=30, **spec)
    pod["metadata"]["labels"] = {"app": app or name}
    return pod


async def leaving(cluster: ClaimsCluster) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in await cluster.pods()
        if "deletionTimestamp" in pod["metadata"]
    }


async def end_leaving(cluster: ClaimsCluster) -> None:
    """Remove the pods that were evicted, as kubelet does once their containers have ended."""
    for name in await leaving(cluster):
        await delete_pod(cluster.client, name)


async def test_the_pod_of_lower_priority_leaves_and_nobody_takes_its_card(
    cluster: ClaimsCluster,
) -> None:
    async with cluster.controller():
        budget = {
            "metadata": {"name": "guard"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}},
        }
        await cluster.client.create(PDBS, budget, namespace="default")
        await create_all(cluster.client, [a_pod("free"), a_pod("guarded")])
        await cluster.until_bound(2)
        waiting = [a_pod(f"waits-{n}") for n in range(5)]
        await create_all(cluster.client, waiting)

        async def all_told() -> bool:
            events = await cluster.all_events("WaitingForCard")
            told = {event["involvedObject"]["name"] for event in events}
            return {pod["metadata"]["name"] for pod in waiting} <= told

        await until(all_told, what="an Event of each pod that waits")

        await create_all(
            cluster.client,
            [a_pod("patient", priorityClassName="patient"), a_pod("p", priorityClassName="high")],
        )

        async def evicted() -> bool:
            return await leaving(cluster) == {"free"}

        await until(evicted, what="the pod that no budget protects leaves")
        (pod,) = [pod for pod in await cluster.pods() if pod["metadata"]["name"] == "free"]
        conditions = {one["type"]: one for one in pod["status"]["conditions"]}
        assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
        await end_leaving(cluster)

        async def is_bound() -> bool:
            return "p" in await cluster.bound()

        await until(is_bound, what="the pod of higher priority gets the card")
        assert set(await cluster.bound()) == {"guarded", "p"}
        assert await cluster.overbooked() == []
        assert await cluster.events_of("free", "Preempted")


async def leader(cluster: ClaimsCluster) -> str:
    lease = await cluster.client.get_object(
        LEASES, "fracgpu-scheduler-extender", namespace=names.SYSTEM_NAMESPACE
    )
    return str(lease["spec"]["holderIdentity"])


async def test_a_new_leader_goes_on_with_the_eviction(
    cluster: ClaimsCluster, tmp_path: Path
) -> None:
    async with (
        replica("first", cluster.kubeconfig, tmp_path) as first,
        replica("second", cluster.kubeconfig, tmp_path) as second,
    ):
        await until(first.ready, what="the first replica is ready")
        await until(second.ready, what="the second replica is ready")
        holder = await leader(cluster)
        await create_all(cluster.client, [a_pod("a"), a_pod("b")])
        await cluster.until_bound(2)
        await create_all(cluster.client, [a_pod("waits")])

        await create_all(cluster.client, [a_pod("p", priorityClassName="high")])

        async def evicted() -> bool:
            return bool(await leaving(cluster))

        await until(evicted, what="one leaves")
        await {"first": first, "second": second}[holder].process.kill()
        (gone,) = await leaving(cluster)

        async def another_leads() -> bool:
            return await leader(cluster) != holder

        await until(another_leads, what="the other replica leads")
        await end_leaving(cluster)

        async def is_bound() -> bool:
            return "p" in await cluster.bound()

        await until(is_bound, what="the pod of higher priority gets the card")
        assert set(await cluster.bound()) == {"p", "a", "b"} - {gone}


async def test_a_quota_of_mib_holds_until_it_is_raised(cluster: ClaimsCluster) -> None:
    hard = {"requests.fracgpu.io/gpu-mem": "9000"}
    quota = {"metadata": {"name": "cards"}, "spec": {"hard": hard}}
    await cluster.client.create(RESOURCE_QUOTAS, quota, namespace="default")
    async with cluster.controller():
        await create_all(cluster.client, [a_pod(f"p{n}", 4_000) for n in range(6)])
        await cluster.until_bound(2)

        async def all_told() -> bool:
            events = await cluster.all_events("ExceededQuota")
            return len({event["involvedObject"]["name"] for event in events}) == 4

        await until(all_told, what="an Event of each pod beyond the quota")
        (event, *_) = await cluster.all_events("ExceededQuota")
        assert (
            "exceeded quota: cards, requested: requests.fracgpu.io/gpu-mem=4000, used: "
            in (event["message"])
        )
        assert len(await cluster.claims()) == 2

        raised = {"spec": {"hard": {"requests.fracgpu.io/gpu-mem": "16000"}}}
        await cluster.client.patch(RESOURCE_QUOTAS, "cards", raised, namespace="default")

        await cluster.until_bound(4)
        assert len(await cluster.claims()) == 4
