"""Two real extender processes: one leads, and one that was paused writes nothing when it wakes."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, PODS
from simulator.apiserver.server import ApiServer
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.replicas import replica
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SOON = ("--lease-duration-s=6", "--bind-timeout-s=1.5")


async def read_pod(client: KubeClient, name: str) -> PodInfo:
    return decode_pod_info(await client.get(PODS, name, namespace="default"))


async def created(client: KubeClient, name: str) -> PodInfo:
    pod: dict[str, Any] = a_gpu_pod(name, mib=20_000)
    await client.create(PODS, pod)
    return await read_pod(client, name)


async def test_a_paused_leader_writes_nothing_after_another_took_over(tmp_path: Path) -> None:
    async with ApiServer.start() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        async with connect(kubeconfig) as client, aiohttp.ClientSession() as http:
            await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            node = a_sharing_node("n", cards=some_cards("n", count=1))
            await register(client, node)
            asked_first, asked_second = [
                await created(client, name) for name in ("first", "second")
            ]
            async with replica("a", kubeconfig, tmp_path, *SOON) as a:
                await until(a.ready, what="a leads", limit_s=150)
                async with replica("b", kubeconfig, tmp_path, *SOON) as b:
                    a.process.send(signal.SIGSTOP)
                    async with asyncio.TaskGroup() as group:
                        # It stays in the paused process's socket until the process resumes.
                        late = group.create_task(a.bind(http, asked_first), name="late bind")

                        async def bound() -> bool:
                            return await b.bind(http, asked_second) == ""

                        await until(bound, what="b leads and binds", limit_s=150)
                        a.process.send(signal.SIGCONT)
                    answer = late.result()

            assert answer == "another replica leads" or answer.startswith("no answer")
            first, second = [await read_pod(client, name) for name in ("first", "second")]
            assert (first.record.node, second.record.node) == ("", "n")
            assert json.loads(second.annotations[names.ASSIGNMENT])["train"][0]["mib"] == 20_000
