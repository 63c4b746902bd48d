"""On a real control plane: pods of lower priority make room, and quotas of MiB hold."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kube.kinds import PDBS
from tests.support.claims import a_claiming_pod
from tests.support.gpu import some_cards
from tests.support.real_claims import RealClaims, create_all, delete_pod, real_claims
from tests.support.real_scheduler import PRIORITY_CLASSES
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CARDS = {name: some_cards(name, count=1, mib=24_000) for name in ("n1", "n2")}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealClaims]:
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


async def leaving(cluster: RealClaims) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in await cluster.pods()
        if "deletionTimestamp" in pod["metadata"]
    }


async def end_leaving(cluster: RealClaims) -> None:
    """Remove the pods that were evicted, as kubelet does once their containers have ended."""
    for name in await leaving(cluster):
        await delete_pod(cluster.client, name)


async def test_the_pod_of_lower_priority_leaves_and_nobody_takes_its_card(
    cluster: RealClaims,
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
            events = await cluster.events("WaitingForCard")
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

        async def told() -> bool:
            return bool(await cluster.events("Preempted", pod="free"))

        await until(told, what="an Event says who made it leave")
