"""A real control plane whose own kube-scheduler allocates cards, from claims that we make."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fracgpu.cards.card import Card
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import PODS
from simulator.envtest.control_plane import ControlPlane
from tests.support.claims import ClaimingCluster, a_claiming_node, publish
from tests.support.claims_wiring import install_claims
from tests.support.gpu import Json
from tests.support.real_apiserver import (
    WITHOUT_NODES,
    real_api_server,
    start_stock_scheduler,
)
from tests.support.roles import Roles, running_roles

_AT_ONCE: Final = 32


@dataclass(slots=True, kw_only=True)
class RealClaims(ClaimingCluster):
    """The control plane, and our role beside it."""

    api: ControlPlane
    kubeconfig: Path
    workdir: Path

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Roles]:
        """Run our scheduler role, which makes the claims."""
        log_dir = self.workdir / "scheduler"
        log_dir.mkdir(exist_ok=True)
        async with running_roles(
            {"scheduler": ["--identity=scheduler"]},
            kubeconfig=self.kubeconfig,
            log_dir=log_dir,
        ) as roles:
            await roles.until_ready("scheduler")
            yield roles


@asynccontextmanager
async def real_claims(
    workdir: Path,
    cards: Mapping[str, Sequence[Card]],
    *,
    gates: str = "",
) -> AsyncIterator[RealClaims]:
    """Start a control plane with the cluster's own kube-scheduler, or skip the test.

    Args:
        workdir: for state and logs.
        cards: of each node.
        gates: feature gates of kube-apiserver, which serves all alpha APIs then, and of
            kube-scheduler.
    """
    flags = {"feature-gates": gates, "runtime-config": "api/alpha=true"} if gates else None
    async with (
        real_api_server(workdir, flags=flags) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        await install_claims(client)
        for name, here in cards.items():
            await publish(client, a_claiming_node(name, here), here)
        await api.start_controller_manager(
            WITHOUT_NODES, "--kube-api-qps=300", "--kube-api-burst=300"
        )
        cluster = RealClaims(
            api=api,
            client=client,
            kubeconfig=api.kubeconfig(workdir / "admin.kubeconfig"),
            workdir=workdir,
            cards=dict(cards),
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
