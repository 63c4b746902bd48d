"""Extenders as separate processes, called as by kube-scheduler."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from fracgpu.state.pod_info import PodInfo
from simulator.envtest.ports import free_ports
from tests.support.processes import Child
from tests.support.real_scheduler import is_ready


class Replica:
    """One process."""

    def __init__(self, process: Child, port: int, telemetry: int) -> None:
        self.process = process
        self.telemetry = telemetry
        self._url = f"http://127.0.0.1:{port}/bind"

    async def ready(self) -> bool:
        return await is_ready(self.telemetry)

    async def bind(self, http: aiohttp.ClientSession, pod: PodInfo) -> str:
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
async def replica(
    name: str, kubeconfig: Path, workdir: Path, *flags: str, identity: str = ""
) -> AsyncIterator[Replica]:
    """Start a replica, and kill it at the end. *name* is for its log, and its default identity."""
    port, telemetry = free_ports(2)
    command = [*(sys.executable, "-m", "cli", "run", "scheduler", "--drain-wait-s=0", *flags)]
    command += [f"--kubeconfig={kubeconfig}", f"--identity={identity or name}"]
    command += [f"--listen-port={port}", f"--telemetry-port={telemetry}"]
    process = Child(command, log=workdir / f"{name}.log")
    await process.start()
    try:
        yield Replica(process, port, telemetry)
    finally:
        await process.kill()
