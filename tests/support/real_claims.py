"""A real control plane whose own kube-scheduler allocates cards, from claims that we make."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fracgpu.cards.card import Card
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import EVENTS, PODS, RESOURCE_CLAIMS
from kube.objects import decode_object
from simulator.envtest.control_plane import ControlPlane
from tests.support.claims import a_claiming_node, overbooked, publish, sizes
from tests.support.claims_wiring import install_claims
from tests.support.gpu import Json
from tests.support.real_apiserver import (
    WITHOUT_NODES,
    real_api_server,
    start_stock_scheduler,
)
from tests.support.roles import Roles, running_roles
from tests.support.waiting import until

_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsCluster:
    """The control plane, and what the tests ask of it."""

    api: ControlPlane
    client: KubeClient
    kubeconfig: Path
    workdir: Path
    cards: Mapping[str, Sequence[Card]]

    async def claims(self) -> list[DeviceClaim]:
        listing = await self.client.list(RESOURCE_CLAIMS)
        return [decode_claim(bytes(raw)) for raw in listing.items]

    async def pods(self) -> list[Json]:
        return [decode_object(raw) for raw in (await self.client.list(PODS)).items]

    async def bound(self) -> dict[str, str]:
        """Return the node of each bound pod."""
        found = (
            (pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in await self.pods()
        )
        return {name: node for name, node in found if node}

    async def all_events(self, reason: str) -> list[Json]:
        listing = await self.client.list(EVENTS, namespace="default")
        events: list[Json] = [decode_object(raw) for raw in listing.items]
        return [event for event in events if event["reason"] == reason]

    async def events_of(self, pod: str, reason: str) -> list[Json]:
        events = await self.all_events(reason)
        return [event for event in events if event["involvedObject"].get("name") == pod]

    async def overbooked(self) -> list[str]:
        """Return the devices of which more is allocated than there is."""
        return overbooked(await self.claims(), sizes(self.cards))

    async def until_bound(self, pods: int, *, limit_s: float = 60) -> None:
        async def all_are() -> bool:
            return len(await self.bound()) == pods

        await until(all_are, what=f"{pods} pods bound", limit_s=limit_s)

    @asynccontextmanager
    async def controller(
        self, *, name: str = "scheduler", kubeconfig: Path | None = None
    ) -> AsyncIterator[Roles]:
        """Run our scheduler role, which makes the claims."""
        log_dir = self.workdir / name
        log_dir.mkdir(exist_ok=True)
        async with running_roles(
            {"scheduler": [f"--identity={name}"]},
            kubeconfig=kubeconfig or self.kubeconfig,
            log_dir=log_dir,
        ) as roles:
            await roles.until_ready("scheduler")
            yield roles


@asynccontextmanager
async def real_claims(
    workdir: Path,
    cards: Mapping[str, Sequence[Card]],
    *,
    nodes: Mapping[str, Json] | None = None,
    flags: Mapping[str, str | None] | None = None,
    users: Mapping[str, str] | None = None,
    gates: str = "",
) -> AsyncIterator[ClaimsCluster]:
    """Start a control plane with the cluster's own kube-scheduler, or skip the test.

    Args:
        workdir: for state and logs.
        cards: of each node.
        nodes: the nodes; by default those of :func:`a_claiming_node`.
        flags: of kube-apiserver.
        users: groups by user, besides the administrator.
        gates: feature gates of kube-apiserver, which serves all alpha APIs then, and of
            kube-scheduler.
    """
    if gates:
        flags = {"feature-gates": gates, "runtime-config": "api/alpha=true", **(flags or {})}
    async with (
        real_api_server(workdir, flags=flags, users=users) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        await install_claims(client)
        for name, here in cards.items():
            await publish(client, (nodes or {}).get(name) or a_claiming_node(name, here), here)
        await api.start_controller_manager(
            WITHOUT_NODES, "--kube-api-qps=300", "--kube-api-burst=300"
        )
        cluster = ClaimsCluster(
            api=api,
            client=client,
            kubeconfig=api.kubeconfig(workdir / "admin.kubeconfig"),
            workdir=workdir,
            cards=cards,
        )
        await start_stock_scheduler(api, cluster.kubeconfig, gates=gates, qps=1000, burst=1000)
        yield cluster


async def create_all(client: KubeClient, pods: Sequence[Json]) -> None:
    """Create pods, some of them at once."""
    queue = iter(pods)

    async def some() -> None:
        for pod in queue:
            await client.create(PODS, pod, namespace="default")

    async with asyncio.TaskGroup() as group:
        for number in range(min(_AT_ONCE, len(pods))):
            group.create_task(some(), name=f"create {number}")


async def delete_pod(client: KubeClient, name: str) -> None:
    """Remove a pod at once, as kubelet would."""
    await client.delete(PODS, name, namespace="default", grace_s=0)
