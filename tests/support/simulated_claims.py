"""A simulated cluster with the wiring by claims: its own kube-scheduler, and our claims."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fracgpu import names
from fracgpu.cards.card import Card
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.request.need import PodNeed
from kube.client import KubeClient
from kube.kinds import EVENTS, PODS, RESOURCE_CLAIMS
from kube.objects import decode_object
from process.clock import SystemClock
from process.lifecycle import run_until_stopped
from scheduler.service import build
from scheduler.settings import SchedulerSettings
from simulator.controllers.manager import run_controllers
from simulator.envtest.ports import free_ports
from simulator.scheduler.scheduler import KubeScheduler
from tests.support.claims import (
    a_claim_entry,
    a_claiming_node,
    granted,
    overbooked,
    publish,
    sizes,
)
from tests.support.claims_wiring import install_claims
from tests.support.objects import Json
from tests.support.waiting import until

LEASE_S = 3


def a_granted_pod(name: str, need: PodNeed, *, inits: Sequence[str] = (), **spec: Any) -> Json:
    """Return a pod as the webhook leaves one with several containers in this wiring."""

    def container(one: str) -> Json:
        claims = [{"name": names.POD_CLAIM, "request": one}]
        return {"name": one, "image": "registry.example/app:1", "resources": {"claims": claims}}

    cores = ", ".join(f"{one.name}={one.cores}" for one in need.containers if one.cores)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {
                **({names.CORES: cores} if cores else {}),
                names.GRANTED: granted(need),
            },
        },
        "spec": {
            "containers": [container(one.name) for one in need.containers if one.name not in inits],
            "initContainers": [container(one) for one in inits],
            "resourceClaims": [a_claim_entry()],
            **spec,
        },
    }


@dataclass(slots=True, kw_only=True)
class ClaimsWorld:
    """The simulated cluster, and what tests ask of it."""

    kube: KubeClient
    kubeconfig: Path
    group: asyncio.TaskGroup
    cards: dict[str, Sequence[Card]] = field(default_factory=dict)
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
        await publish(self.kube, a_claiming_node(name, cards), cards)
        self.cards[name] = cards

    async def claims(self) -> list[DeviceClaim]:
        listed = await self.kube.list(RESOURCE_CLAIMS)
        return [decode_claim(bytes(raw)) for raw in listed.items]

    async def pods(self) -> Mapping[str, Json]:
        found = [decode_object(bytes(raw)) for raw in (await self.kube.list(PODS)).items]
        return {pod["metadata"]["name"]: pod for pod in found}

    async def bound(self) -> Mapping[str, str]:
        found = {name: pod["spec"].get("nodeName") for name, pod in (await self.pods()).items()}
        return {name: node for name, node in found.items() if node}

    async def overbooked(self) -> list[str]:
        """Return the cards of which more is allocated than there is."""
        return overbooked(await self.claims(), sizes(self.cards))

    async def events(self, pod: str, reason: str) -> list[Json]:
        listed = await self.kube.list(EVENTS, namespace="default")
        found: list[Json] = [decode_object(bytes(raw)) for raw in listed.items]
        return [
            event
            for event in found
            if event["reason"] == reason and event["involvedObject"].get("name") == pod
        ]

    async def until_bound(self, count: int, *, limit_s: float = 60) -> None:
        async def are() -> bool:
            return len(await self.bound()) == count

        await until(are, what=f"{count} pods are bound", limit_s=limit_s)

    async def delete_all(self) -> None:
        """Delete all pods, and wait until no claim is left."""
        for name in await self.pods():
            await self.kube.delete(PODS, name, namespace="default", grace_s=0)

        async def none_left() -> bool:
            return not await self.claims()

        await until(none_left, what="no claim is left")


@asynccontextmanager
async def a_claims_world(
    kube: KubeClient, kubeconfig: Path, *, wiring: str = "claims"
) -> AsyncIterator[ClaimsWorld]:
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
        world = ClaimsWorld(kube=kube, kubeconfig=kubeconfig, group=group, extender_port=port)
        try:
            yield world
        finally:
            for name in list(world.leaders):
                with suppress(asyncio.CancelledError):
                    await world.kill(name)
            for task in running:
                task.cancel()
