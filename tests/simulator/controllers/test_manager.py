import asyncio

from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import REPLICASETS
from process.clock import SystemClock
from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.server import ApiServer
from simulator.background import background
from simulator.controllers.manager import run_controllers
from tests.simulator.controllers.harness import Harness, an_owner


async def test_controllers_started_late_find_what_is_to_be_done(kube: KubeClient) -> None:
    await kube.create(REPLICASETS, an_owner("a", replicas=2), namespace="default")

    async with background(run_controllers(kube, SystemClock())):
        await Harness(kube).wait_count(2)


async def test_controllers_outlive_a_restart_of_the_api_server() -> None:
    store = Store()
    async with ApiServer.start(store=store) as first, connect_to(first.url) as kube:
        port = int(first.url.rpartition(":")[2])
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run_controllers(kube, SystemClock()))
            await kube.create(REPLICASETS, an_owner("a", replicas=1), namespace="default")
            harness = Harness(kube)
            await harness.wait_count(1)
            await first.stop()

            async with ApiServer.start(store=store, port=port):
                await kube.patch(REPLICASETS, "a", {"spec": {"replicas": 3}}, namespace="default")
                await harness.wait_count(3)
                running.cancel()
                await asyncio.wait({running})
