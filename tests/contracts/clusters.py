"""A simulated cluster of controllers, to compare with a real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kube.access import connect
from kube.client import KubeClient
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.controllers.manager import run_controllers
from simulator.scheduler.scheduler import KubeScheduler


@asynccontextmanager
async def simulated(workdir: Path, *, scheduler: bool = False) -> AsyncIterator[KubeClient]:
    """Run an API server and the controllers; with *scheduler* also kube-scheduler."""
    async with (
        ApiServer.start(port=0) as api,
        connect(api.kubeconfig(workdir / "kubeconfig")) as kube,
        asyncio.TaskGroup() as group,
    ):
        clock = SystemClock()
        running = [group.create_task(run_controllers(kube, clock), name="controllers")]
        if scheduler:
            stock = KubeScheduler(
                kube, clock, extender_url=None, scheduler_name="default-scheduler"
            )
            running.append(group.create_task(stock.run(), name="scheduler"))
        yield kube
        for each in running:
            each.cancel()
