"""A cluster whose controllers run, so that a pod released from its ReplicaSet is replaced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.kinds import PODS
from process.clock import SystemClock
from simulator.controllers.manager import run_controllers
from tests.support.moving import NAMESPACE, Rig, a_rig, end_pod, make_cluster, schedule, set_ready
from tests.support.waiting import until


class SurgeCluster:
    """The pods of the one owner, and what scheduler and kubelet do to them."""

    def __init__(self, kube: KubeClient, rig: Rig) -> None:
        self.kube, self.rig = kube, rig

    async def pods(self) -> dict[str, PodInfo]:
        """Return the namespace's pods by name."""
        listed = await self.kube.list(PODS, namespace=NAMESPACE)
        pods = [decode_pod_info(bytes(raw)) for raw in listed.items]
        return {pod.record.name: pod for pod in pods}

    async def pod(self, name: str = "pod-a") -> PodInfo:
        return (await self.pods())[name]

    async def wait_replacement(self) -> str:
        """Return the name of the pod that the ReplicaSet made, once it exists."""
        found: list[str] = []

        async def made() -> bool:
            found[:] = [name for name in await self.pods() if name.startswith("web-")]
            return bool(found)

        await until(made, what="the ReplicaSet makes a replacement")
        return found[0]

    async def wait_owned(self, name: str = "pod-a", *, owned: bool = True) -> None:
        async def is_so() -> bool:
            return (
                (await self.pod(name)).owner is not None
                if owned
                else ((await self.pod(name)).owner is None)
            )

        await until(is_so, what=f"{name} owned: {owned}")

    async def wait_gone(self, name: str) -> None:
        """Wait until a pod is terminating, then end it as its kubelet does."""

        async def going() -> bool:
            pods = await self.pods()
            return name not in pods or pods[name].record.terminating

        await until(going, what=f"{name} is terminating")
        if name in await self.pods():
            await end_pod(self.kube, name)

    async def surge(self) -> str:
        """Run the move until the replacement exists; returns its name."""
        await self.rig.tick_until_planned()
        await self.rig.tick()
        await self.wait_owned(owned=False)
        return await self.wait_replacement()

    async def surge_until_ready(self, **placed: Any) -> str:
        """Run the move until the replacement is Ready, by default where it is reserved."""
        name = await self.surge()
        await schedule(self.kube, **placed)
        await self.rig.tick()
        return name

    async def ready(self, name: str, *, ready: bool) -> None:
        await set_ready(self.kube, name, ready=ready)

    async def released(self, name: str = "pod-a") -> bool:
        """Report whether a pod carries the marks of a surge."""
        pod = await self.pod(name)
        return names.MOVED_BY in pod.annotations


@asynccontextmanager
async def a_surge_cluster(
    kube: KubeClient, *, pods: int = 2, account: KubeClient | None = None, **rig: Any
) -> AsyncIterator[SurgeCluster]:
    """Run controllers and a rebalancer over one ReplicaSet on a hot card.

    The rebalancer may be given the client of another *account* than all the others have.
    """
    await make_cluster(kube, pods=pods)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_controllers(kube, SystemClock()), name="controllers")
        try:
            async with a_rig(account or kube, **rig) as found:
                yield SurgeCluster(kube, found)
        finally:
            running.cancel()
