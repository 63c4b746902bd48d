"""etcd is restored from a backup beneath a real kube-apiserver: what our processes then see."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from kube.access import connect
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import CONFIGMAPS
from kube.retry import RetryPolicy
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until_true

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
