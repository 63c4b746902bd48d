"""etcd is restored from a backup beneath a real kube-apiserver: what our processes then see."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from kube.access import connect
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import CONFIGMAPS, LEASES
from kube.leader_election import LeaderElector, LeaseDurations, LeaseLost
from kube.retry import RetryPolicy
from process.clock import SystemClock
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

FAST: Final = RetryPolicy(first_pause_s=0.2, longest_pause_s=1)
# More changes than kube-apiserver itself makes while it starts.
LOST: Final = 300


def follower(client: KubeClient) -> Informer[bytes]:
    return Informer(
        client.with_retry(FAST), CONFIGMAPS, decode=bytes, namespace="default", backoff=FAST
    )


def named(informer: Informer[bytes]) -> set[str]:
    return {key.name for key in informer.items()} - {"kube-root-ca.crt"}


async def create(client: KubeClient, name: str) -> None:
    await client.create(CONFIGMAPS, {"metadata": {"name": name}}, namespace="default")


def candidate(client: KubeClient) -> LeaderElector:
    """Return a candidate that would live through a longer outage than a restart."""
    return LeaderElector(
        client,
        SystemClock(),
        name="leader",
        namespace="default",
        identity="one",
        times=LeaseDurations(duration_s=180, renew_deadline_s=160, retry_s=1),
    )


async def lease_version(client: KubeClient) -> str:
    found = await client.get_object(LEASES, "leader", namespace="default")
    return str(found["metadata"]["resourceVersion"])


async def why_it_ends(leader: LeaderElector) -> str:
    """Renew until the Lease is lost; return why."""
    try:
        await leader.renew_until_lost()
    except LeaseLost as lost:
        return str(lost)
    return ""


async def test_after_a_restore_only_a_process_that_was_restarted_sees_what_there_is(
    tmp_path: Path,
) -> None:
    backup = tmp_path / "backup"
    async with (
        real_api_server(tmp_path / "api") as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as client,
        asyncio.TaskGroup() as group,
    ):
        await create(client, "kept")
        await api.back_up(backup)
        running = follower(client)
        tasks = [group.create_task(running.run())]
        lost = [f"lost-{number}" for number in range(LOST)]
        for name in lost:
            await create(client, name)
        await until_true(lambda: named(running) == {"kept", *lost}, what="all is seen")

        await api.restore(backup)
        await create(client, "new")
        restarted = follower(client)
        tasks.append(group.create_task(restarted.run()))
        await until_true(lambda: named(restarted) == {"kept", "new"}, what="it lists anew")
        await create(client, "newer")
        await until_true(lambda: "newer" in named(restarted), what="it follows")

        # docs/operations.md says so, and says to restart our processes.
        assert named(running) == {"kept", *lost}
        for task in tasks:
            task.cancel()


async def test_a_leader_finds_its_lease_older_after_a_restore_and_ends(tmp_path: Path) -> None:
    async with (
        real_api_server(tmp_path / "api") as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        leader = candidate(client)
        await leader.acquire()
        await api.back_up(tmp_path / "backup")
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(why_it_ends(leader))
            saved = await lease_version(client)

            async def renewed() -> bool:
                return await lease_version(client) != saved

            await until(renewed, what="the Lease is renewed after the backup")
            await api.restore(tmp_path / "backup")
            async with asyncio.timeout(60):
                why = await ended

        assert "etcd was restored" in why
        assert not leader.still_leader()
        successor = candidate(client)
        async with asyncio.timeout(60):
            await successor.acquire()
