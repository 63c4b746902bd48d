"""A simulated cluster with the wiring by claims: its own kube-scheduler, and our claims."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fracgpu import names
from fracgpu.cards.card import Card
from kube.client import KubeClient
from kube.kinds import PODS
from process.clock import SystemClock
from process.lifecycle import run_until_stopped
from scheduler.service import build
from scheduler.settings import SchedulerSettings
from simulator.controllers.manager import run_controllers
from simulator.envtest.ports import free_ports
from simulator.scheduler.scheduler import KubeScheduler
from tests.support.claims import (
    ClaimingCluster,
    a_claiming_node,
    publish,
)
from tests.support.claims_wiring import install_claims
from tests.support.waiting import until

LEASE_S = 3


@dataclass(slots=True, kw_only=True)
class SimulatedClaims(ClaimingCluster):
    """The simulated cluster, and our role beside it."""

    kubeconfig: Path
    group: asyncio.TaskGroup
    leaders: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    extender_port: int = 0

    def start_leader(
        self, name: str, *, kubeconfig: Path | None = None, lease_s: int = LEASE_S
    ) -> None:
        """Start a replica of our scheduler role, which makes the claims while it leads.

        As by kubelet, it is started again when it ends by itself: on a busy machine it may lose its
        Lease.
        """
        settings = SchedulerSettings(
            kubeconfig=str(kubeconfig or self.kubeconfig),
            identity=name,
            listen_host="127.0.0.1",
            listen_port=self.extender_port,
            telemetry_host="127.0.0.1",
            telemetry_port=0,
            drain_wait_s=0.0,
            drain_timeout_s=0.5,
            lease_duration_s=lease_s,
            bind_timeout_s=0.9,
        )

        async def run() -> None:
            while await run_until_stopped(build(settings), SystemClock(), stop=asyncio.Event()):
                pass

        self.leaders[name] = self.group.create_task(run(), name=name)

    async def kill(self, name: str) -> None:
        """End a replica at whatever it awaits; its Lease stays as it is."""
        task = self.leaders.pop(name)
        task.cancel()
        await asyncio.wait({task})

    async def add_node(self, name: str, cards: Sequence[Card]) -> None:
        """Register a node without kubelet or agent, and its slice."""
        await publish(self.client, a_claiming_node(name, cards), cards)
        self.cards[name] = cards

    async def delete_all(self) -> None:
        """Delete all pods, and wait until no claim is left."""
        for pod in await self.pods():
            name = pod["metadata"]["name"]
            await self.client.delete(PODS, name, namespace="default", grace_s=0)

        async def none_left() -> bool:
            return not await self.claims()

        await until(none_left, what="no claim is left")


@asynccontextmanager
async def a_claims_world(
    kube: KubeClient, kubeconfig: Path, *, wiring: str = "claims"
) -> AsyncIterator[SimulatedClaims]:
    """Run the controllers and kube-scheduler of a cluster with what the chart installs.

    Where the *wiring* is both, a kube-scheduler of ours runs as well, which asks the extender.
    """
    await install_claims(kube, wiring)
    clock = SystemClock()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    ours = KubeScheduler(kube, clock, extender_url=url, scheduler_name=names.SCHEDULER_NAME)
    scheduler = KubeScheduler(kube, clock, extender_url=None, scheduler_name="default-scheduler")
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(run_controllers(kube, clock), name="controllers"),
            group.create_task(scheduler.run(), name="kube-scheduler"),
        ]
        if "+" in wiring:
            running.append(group.create_task(ours.run(), name="our kube-scheduler"))
        world = SimulatedClaims(client=kube, kubeconfig=kubeconfig, group=group, extender_port=port)
        try:
            yield world
        finally:
            for name in list(world.leaders):
                with suppress(asyncio.CancelledError):
                    await world.kill(name)
            for task in running:
                task.cancel()
