"""Two real extender processes: one leads, and one that was paused writes nothing when it wakes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fracgpu import names
from fracgpu.views import PodView, read_pod
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, PODS
from simulator.apiserver import ApiServer
from simulator.ports import free_ports
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.real_scheduler import is_ready
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Replica:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, telemetry: int) -> None:
        self.process = process
        self.telemetry = telemetry
        self._url = f"http://127.0.0.1:{port}/bind"

    async def ready(self) -> bool:
        return await is_ready(self.telemetry)

    async def bind(self, http: aiohttp.ClientSession, pod: PodView) -> str:
        args = {
            "PodName": pod.record.name,
            "PodNamespace": pod.record.namespace,
            "PodUID": pod.record.uid,
            "Node": "n",
        }
        try:
            async with http.post(self._url, json=args) as answer:
                return str((await answer.json())["Error"])
        except aiohttp.ClientError as error:
            return f"no answer: {error!r}"


@asynccontextmanager
async def replica(name: str, kubeconfig: Path, workdir: Path) -> AsyncIterator[Replica]:
    port, telemetry = free_ports(2)
    words = ["run", "scheduler", "--kubeconfig", str(kubeconfig), "--identity", name]
    words += ["--listen-port", str(port), "--telemetry-port", str(telemetry), "--drain-wait-s", "0"]
    with (workdir / f"{name}.log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli", *words, stdout=out, stderr=out, env=dict(os.environ)
        )
    try:
        yield Replica(process, port, telemetry)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def seen(client: KubeClient, name: str) -> PodView:
    return read_pod(await client.get(PODS, name, namespace="default"))


async def created(client: KubeClient, name: str) -> PodView:
    pod: dict[str, Any] = a_gpu_pod(name, mib=20_000)
    await client.create(PODS, pod)
    return await seen(client, name)


async def test_a_paused_leader_writes_nothing_after_another_took_over(tmp_path: Path) -> None:
    async with ApiServer.start() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        async with connect(kubeconfig) as client, aiohttp.ClientSession() as http:
            await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            node = a_sharing_node("n", cards=some_cards("n", count=1))
            await register(client, node)
            asked_first, asked_second = [await created(client, it) for it in ("first", "second")]
            async with replica("a", kubeconfig, tmp_path) as a:
                await until(a.ready, what="a leads", limit_s=60)
                async with replica("b", kubeconfig, tmp_path) as b:
                    os.kill(a.process.pid, signal.SIGSTOP)
                    async with asyncio.TaskGroup() as group:
                        # It lies in the paused process's socket until that wakes.
                        late = group.create_task(a.bind(http, asked_first), name="late bind")

                        async def bound() -> bool:
                            return await b.bind(http, asked_second) == ""

                        await until(bound, what="b leads and binds", limit_s=90)
                        os.kill(a.process.pid, signal.SIGCONT)
                    answer = late.result()

            assert answer == "another replica leads" or answer.startswith("no answer")
            first, second = [await seen(client, it) for it in ("first", "second")]
            assert (first.record.node, second.record.node) == ("", "n")
            assert json.loads(second.annotations[names.ASSIGNMENT])["train"][0]["mib"] == 20_000
