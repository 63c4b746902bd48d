"""On a real control plane: the pods of a gang get their claims at once, or none of them does."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from kube.kinds import Kind
from tests.support.api_gate import ApiGate, Write, claiming
from tests.support.claims import a_claiming_pod
from tests.support.gpu import some_cards
from tests.support.real_claims import ClaimsCluster, create_all, delete_pod, real_claims
from tests.support.replicas import replica
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# A second is what a user waits for; the machine of the tests may be busy with others.
SLACK_S: Final = 9.0
# One pod fits on a card: there is room for one of two gangs of three, and one card more.
CARDS = {name: some_cards(name, count=2, mib=24_000) for name in ("n1", "n2")}
SIZE: Final = 3
POD_MIB: Final = 16_000
GATES: Final = "GenericWorkload=true,GangScheduling=true"
POD_GROUPS: Final = Kind("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", namespaced=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimsCluster]:
    async with real_claims(tmp_path, CARDS) as started:
        yield started


def a_gang(name: str) -> list[dict[str, Any]]:
    note = {names.GANG: f"{name}/{SIZE}"}
    return [a_claiming_pod(f"{name}-{n}", POD_MIB, annotations=note) for n in range(SIZE)]


async def bound(cluster: ClaimsCluster) -> Counter[str]:
    """Return how many pods of each gang are bound."""
    return Counter(name.partition("-")[0] for name in await cluster.bound())


async def claimed(cluster: ClaimsCluster) -> Counter[str]:
    """Return how many pods of each gang have a claim."""
    owners = [claim.owner for claim in await cluster.claims()]
    return Counter(owner.name.partition("-")[0] for owner in owners if owner is not None)


async def test_a_gang_waits_for_its_last_pod_and_each_pod_is_told_within_a_second(
    cluster: ClaimsCluster,
) -> None:
    async with cluster.controller():
        *first, last = a_gang("a")
        await create_all(cluster.client, first)

        async def all_told() -> bool:
            return len(await cluster.all_events("WaitingForGang")) == SIZE - 1

        await until(all_told, what="an Event of each pod that waits", limit_s=20)
        created = {
            pod["metadata"]["name"]: datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            for pod in await cluster.pods()
        }
        for event in await cluster.all_events("WaitingForGang"):
            # The Event of the first pod may be older than the second pod.
            said = r"gang a, which waits for its pods \([12] of 3 exist\)"
            assert re.search(said, event["message"]), event["message"]
            waited = (
                datetime.fromisoformat(event["eventTime"])
                - created[event["involvedObject"]["name"]]
            )
            # The API server gives the time of creation in whole seconds.
            assert waited.total_seconds() < 1 + 1 + SLACK_S
        assert await cluster.claims() == []

        await create_all(cluster.client, [last])
        await cluster.until_bound(SIZE)
        assert await cluster.overbooked() == []


async def test_of_two_gangs_for_the_room_of_one_each_runs_whole_in_turn(
    cluster: ClaimsCluster,
) -> None:
    async with cluster.controller():
        both = [pod for pair in zip(a_gang("a"), a_gang("b"), strict=True) for pod in pair]
        await create_all(cluster.client, both)
        await cluster.until_bound(SIZE)
        (one,) = await bound(cluster)
        other = "b" if one == "a" else "a"

        async def told() -> bool:
            events = await cluster.all_events("WaitingForCard")
            return sum("room for all its 3 pods at once" in each["message"] for each in events) == 3

        await until(told, what="an Event says why the other waits", limit_s=20)
        assert await bound(cluster) == {one: SIZE}
        assert await claimed(cluster) == {one: SIZE}

        for number in range(SIZE):
            await delete_pod(cluster.client, f"{one}-{number}")

        async def other_runs() -> bool:
            return await bound(cluster) == {other: SIZE}

        await until(other_runs, what="the other runs")


def of_gangs(write: Write) -> bool:
    """Select the creation of a claim for a pod of a gang."""
    if not claiming(write):
        return False
    (owner,) = json.loads(write.body)["metadata"]["ownerReferences"]
    return not str(owner["name"]).startswith("late-")


class AfterTheFirst:
    """Selects the claims of gangs that a process creates after its first."""

    def __init__(self) -> None:
        self._first = True

    def __call__(self, write: Write) -> bool:
        if not of_gangs(write):
            return False
        first, self._first = self._first, False
        return not first


@asynccontextmanager
async def a_gate(cluster: ClaimsCluster) -> AsyncIterator[tuple[ApiGate, Path]]:
    """Yield a gate before the API server, and the kubeconfig that leads through it."""
    gate = ApiGate(cluster.api.url, ca_file=cluster.api.ca_file)
    async with gate.open():
        kubeconfig = cluster.workdir / "through-the-gate.kubeconfig"
        text = await asyncio.to_thread(cluster.kubeconfig.read_text)
        await asyncio.to_thread(kubeconfig.write_text, text.replace(cluster.api.url, gate.url))
        yield gate, kubeconfig


async def die_after_one_claim(
    cluster: ClaimsCluster, gate: ApiGate, kubeconfig: Path, name: str
) -> None:
    """Run a leader until it has written one claim of a gang, of which it is told nothing."""
    busy = {"reason": "TooManyRequests", "code": 429, "details": {"retryAfterSeconds": 1}}
    gate.refuse(AfterTheFirst(), *[(429, busy)] * 1_000)
    gate.set_trap(of_gangs)
    async with replica(name, kubeconfig, cluster.workdir, identity="leader"):

        async def written() -> bool:
            return gate.sprung.is_set()

        await until(written, what="one claim is written", limit_s=60)
    gate.refuse(claiming)


async def test_a_gang_is_completed_although_the_leader_is_killed_after_each_of_its_writes(
    cluster: ClaimsCluster,
) -> None:
    async with a_gate(cluster) as (gate, kubeconfig):
        await create_all(cluster.client, [*a_gang("a"), *a_gang("b")])
        begun: set[str] = set()
        for number in range(SIZE):
            await die_after_one_claim(cluster, gate, kubeconfig, f"leader-{number}")
            # There is one card for these, beside those of the gang.
            await create_all(cluster.client, [a_claiming_pod(f"late-{number}", POD_MIB)])
            begun = (await claimed(cluster)).keys() - {"late"}
            assert len(begun) == 1, "no claim of the other gang"

        async with replica("last", kubeconfig, cluster.workdir, identity="leader"):
            await cluster.until_bound(SIZE + 1)
            (gang,) = begun
            assert await bound(cluster) == {gang: SIZE, "late": 1}
            assert await cluster.overbooked() == []

            async def each_late_one_waits() -> bool:
                return await claimed(cluster) == {gang: SIZE, "late": SIZE}

            await until(each_late_one_waits, what="open claims, and none of the other gang")


async def test_of_two_pod_groups_for_the_room_of_one_each_runs_whole_in_turn(
    tmp_path: Path,
) -> None:
    """kube-scheduler counts their pods itself, and takes their cards as they come."""
    async with real_claims(tmp_path, CARDS, gates=GATES) as cluster, cluster.controller():
        for name in ("a", "b"):
            policy = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
            group = {"metadata": {"name": name, "namespace": "default"}, "spec": policy}
            await cluster.client.create(POD_GROUPS, group)
        *most, last = [pod for name in ("a", "b") for pod in of_group(name)]
        await create_all(cluster.client, most[: SIZE - 1] + most[SIZE:])

        async def all_claimed() -> bool:
            return (await claimed(cluster)).total() == 2 * SIZE - 2

        await until(all_claimed, what="each has a claim", limit_s=60)
        assert await bound(cluster) == {}
        await create_all(cluster.client, [most[SIZE - 1], last])
        await cluster.until_bound(SIZE)
        (one,) = await bound(cluster)

        async def other_was_tried() -> bool:
            waiting = [pod for pod in await cluster.pods() if not pod["spec"].get("nodeName")]
            return all(pod["status"].get("conditions") for pod in waiting)

        await until(other_was_tried, what="kube-scheduler has tried the other", limit_s=60)
        assert await bound(cluster) == {one: SIZE}
        # The pods of a group make nobody leave, and keep no card from others.
        await create_all(cluster.client, [a_claiming_pod("late", POD_MIB)])
        await cluster.until_bound(SIZE + 1)
        for number in range(SIZE):
            await delete_pod(cluster.client, f"{one}-{number}")
        other = "b" if one == "a" else "a"

        async def other_runs() -> bool:
            return await bound(cluster) == {other: SIZE, "late": 1}

        await until(other_runs, what="the other runs", limit_s=60)
        assert await cluster.overbooked() == []


def of_group(name: str) -> list[dict[str, Any]]:
    group = {"podGroupName": name}
    return [a_claiming_pod(f"{name}-{n}", POD_MIB, schedulingGroup=group) for n in range(SIZE)]


async def test_a_gang_that_cannot_be_completed_gives_back_what_nobody_uses(
    cluster: ClaimsCluster,
) -> None:
    async with a_gate(cluster) as (gate, kubeconfig):
        pods = a_gang("a")
        for pod in pods:
            pod["spec"]["schedulerName"] = "nobody"  # so that nothing is allocated
        await create_all(cluster.client, pods)
        await die_after_one_claim(cluster, gate, kubeconfig, "first")
        (claim,) = await cluster.claims()
        assert claim.owner is not None
        gone = next(
            pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] != claim.owner.name
        )
        await delete_pod(cluster.client, gone)

        async with replica("second", kubeconfig, cluster.workdir, identity="leader"):

            async def none_left() -> bool:
                return not await cluster.claims()

            await until(none_left, what="the claim is given back", limit_s=60)
            await create_all(
                cluster.client, [a_claiming_pod(f"late-{n}", POD_MIB) for n in range(4)]
            )
            await cluster.until_bound(4)
