"""A real cluster with scattered room, where kubelets are played, and a real rebalancer beside it.

Cards are measured by a real Prometheus that scrapes what a test says.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.state.move_object import MoveObject, decode_move
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.informer import Change, ChangeType, Informer
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, MOVES, NAMESPACES, NODES, PDBS, PODS
from process.clock import SystemClock
from simulator.demo.roles import RoleProcess, process_spec
from simulator.demo.supervisor import Supervisor
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from simulator.envtest.prometheus import RealPrometheus
from tests.fakes.exporter import Exporter
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards
from tests.support.moving import NAMESPACE, SHORT_WINDOWS, play_kubelets
from tests.support.real_scheduler import is_ready, real_scheduler
from tests.support.waiting import until

A30, L4 = "NVIDIA A30", "NVIDIA L4"
CARD_MIB: Final = 24_000
HALF_NODES: Final = ("a30-1", "a30-2")
OTHER_NODE: Final = "l4-1"
NODE_CPU: Final = "64"

# What a test cannot wait for is short; what would stop a second plan is off.
QUICK: Final[Mapping[str, Any]] = {
    **SHORT_WINDOWS,
    "settleS": 5,
    "minPodAgeS": 0,
    "readyS": 0,
    "makeRoomAfterS": 2,
    "makeRoomHoldS": 300,
    "planTtlS": 60,
    "maxPerHour": 40,
    "maxPerNamespacePerHour": 100,
    "maxPerOwnerPerHour": 100,
    "maxPerOwnerPerDay": 100,
    "maxPerPodPerHour": 100,
    "ownerCooldownS": 1,
    "cardCooldownS": 1,
    "giveUpCooldownS": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A Deployment with a disruption budget; its pods want half an A30's third."""

    name: str
    replicas: int
    min_available: int
    model: str = A30
    mib: int = 8_000
    cpu: str = "4"
    annotations: Mapping[str, str] = field(default_factory=dict)

    def deployment(self) -> Json:
        notes = {names.MODEL: self.model, **self.annotations}
        template = a_gpu_pod("template", mib=self.mib, namespace=NAMESPACE, annotations=notes)
        template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = self.cpu
        metadata = {
            "labels": {"app": self.name},
            "annotations": template["metadata"]["annotations"],
        }
        return {
            "metadata": {"name": self.name},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": {"app": self.name}},
                "template": {"metadata": metadata, "spec": template["spec"]},
            },
        }

    def budget(self) -> Json:
        selector = {"matchLabels": {"app": self.name}}
        spec = {"minAvailable": self.min_available, "selector": selector}
        return {"metadata": {"name": self.name}, "spec": spec}


APPS: Final = (
    App(name="web", replicas=3, min_available=3),
    App(name="api", replicas=2, min_available=2),
    App(name="queue", replicas=2, min_available=1),
    App(name="db", replicas=1, min_available=1, annotations={names.REBALANCE: "never"}),
    App(name="vision", replicas=1, min_available=1, model=L4),
)


class Fragmented:
    """Two nodes of A30, one third of each card taken, and one of L4 with an idle card.

    Attributes:
        fewest_ready: of each app, the fewest pods that were Ready at any moment since `watch`.
    """

    def __init__(self, kube: KubeClient, api: ControlPlane, workdir: Path) -> None:
        self.kube, self.api, self.workdir = kube, api, workdir
        self.fewest_ready: dict[str, int] = {}
        self._ready: dict[str, set[str]] = {}
        self._watching = False

    def on_change(self, change: Change[PodInfo]) -> None:
        """Count each app's Ready pods after every change, in the order of the changes."""
        pod = change.object
        app = pod.labels.get("app", "")
        ready = change.type is not ChangeType.DELETED and pod.ready and not pod.record.terminating
        now_ready = self._ready.setdefault(app, set())
        (now_ready.add if ready else now_ready.discard)(change.uid)
        if self._watching:
            self.fewest_ready[app] = min(self.fewest_ready.get(app, 1000), len(now_ready))

    def watch(self) -> None:
        """Begin to count."""
        self._watching = True
        self.fewest_ready = {app: len(ready) for app, ready in self._ready.items()}

    async def pods(self, app: str = "") -> list[PodInfo]:
        selector = f"app={app}" if app else ""
        listed = await self.kube.list(PODS, namespace=NAMESPACE, label_selector=selector)
        return [decode_pod_info(bytes(raw)) for raw in listed.items]

    async def pod(self, name: str) -> PodInfo:
        return decode_pod_info(await self.kube.get(PODS, name, namespace=NAMESPACE))

    async def moves(self) -> list[MoveObject]:
        return [decode_move(bytes(raw)) for raw in (await self.kube.list(MOVES)).items]

    async def beat(self) -> None:
        """Report the nodes alive, so that the node lifecycle controller does not taint them."""
        while True:
            now = f"{SystemClock().now():%Y-%m-%dT%H:%M:%SZ}"
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
            for node in fleet_cards():
                body = {"status": {"conditions": [ready]}}
                with suppress(KubeError):
                    await self.kube.patch(NODES, node, body, subresource="status")
            await asyncio.sleep(5)

    async def fill(self) -> None:
        """Create the apps, one pod on each card of the A30 nodes.

        One app after the other, so that on each node pods of two apps may be moved: an app rests
        after a move, and no room for two cards could be made where all pods are of one.
        """
        placement = {"placement": "strategy: spread\n"}
        meta = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
        await self.kube.create(CONFIGMAPS, {"metadata": meta, "data": placement})
        for app in APPS:
            await self.kube.create(PDBS, app.budget(), namespace=NAMESPACE)
            await self.kube.create(DEPLOYMENTS, app.deployment(), namespace=NAMESPACE)
            await until(partial(self.complete, app), what=f"{app.name} is Ready", limit_s=120)

    async def complete(self, *apps: App) -> bool:
        """Report whether each of the apps, or every one, has exactly its pods, all Ready."""
        for app in apps or APPS:
            pods = await self.pods(app.name)
            if len(pods) != app.replicas or not all(pod.ready for pod in pods):
                return False
        return True

    async def ask(self, name: str, *, cards: int = 1, mib: int = CARD_MIB, cpu: str = "1") -> None:
        """Create a pod that asks for A30 cards; it has no owner, so it is never moved."""
        body = a_gpu_pod(
            name,
            mib=mib,
            cards=cards,
            namespace=NAMESPACE,
            annotations={names.MODEL: A30},
        )
        body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
        await self.kube.create(PODS, body)

    async def configure(self, **settings: Any) -> None:
        """Edit the rebalancer's settings as an administrator would."""
        patch = {"data": {"rebalancer": yaml.safe_dump({**QUICK, **settings})}}
        await self.kube.patch(CONFIGMAPS, names.CONFIG_MAP, patch, namespace=names.SYSTEM_NAMESPACE)

    async def bound(self, name: str) -> bool:
        return bool((await self.pod(name)).record.node)

    async def refused(self, name: str) -> bool:
        return (await self.pod(name)).unschedulable_since is not None

    async def remove(self, name: str) -> None:
        try:
            await self.kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)
        except NotFound:
            return

    def page(self) -> str:
        """Return what the nodes' exporters say: every card is cool."""
        now = time.time()  # noqa: TID251 - as an exporter would
        lines = [f"fracgpu_collect_timestamp_seconds {now}"]
        for uuid in (card.uuid for cards in fleet_cards().values() for card in cards):
            lines.append(f'DCGM_FI_DEV_POWER_USAGE{{UUID="{uuid}",pod=""}} {100 + now % 10}')
            lines.append(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{uuid}",pod=""}} {3 + now % 2}')
            lines.append(f'DCGM_FI_DEV_FB_FREE{{UUID="{uuid}",pod=""}} {CARD_MIB}')
        return "\n".join([*lines, ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancerProcess:
    """The rebalancer as it runs in a pod."""

    roles: Supervisor
    telemetry_port: int
    audit_file: Path

    def cycles(self) -> list[Json]:
        """Return what each cycle so far has seen and decided."""
        text = self.audit_file.read_text() if self.audit_file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["audit"] == "cycle"]


def fleet_cards() -> dict[str, tuple[Card, ...]]:
    """Return the cards of each node."""
    found = {name: some_cards(name, count=4, mib=CARD_MIB) for name in HALF_NODES}
    other = some_cards(OTHER_NODE, count=2, mib=CARD_MIB)
    return {**found, OTHER_NODE: tuple(replace(card, model=L4) for card in other)}


def a_fragmented_fleet() -> list[Json]:
    return [
        a_sharing_node(name, cards=cards, cpu=NODE_CPU) for name, cards in fleet_cards().items()
    ]


def cards_of(pod: PodInfo) -> set[CardUuid]:
    return {part.card for parts in (pod.record.assignment or {}).values() for part in parts}


@asynccontextmanager
async def a_fragmented_cluster(workdir: Path) -> AsyncIterator[Fragmented]:
    """Start the cluster, or skip the test without binaries."""
    async with real_scheduler(workdir, a_fragmented_fleet(), controllers=True) as harness:
        await harness.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        cluster = Fragmented(harness.client, harness.api, workdir)
        informer = Informer(
            harness.client, PODS, decode=decode_pod_info, on_change=cluster.on_change
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(play_kubelets(harness.client, cluster.pods)),
                group.create_task(cluster.beat()),
                group.create_task(informer.run()),
            ]
            await informer.wait_synced()
            try:
                await cluster.fill()
                yield cluster
            finally:
                for task in tasks:
                    task.cancel()


@asynccontextmanager
async def a_rebalancer(
    cluster: Fragmented, *, kubeconfig: Path | None = None
) -> AsyncIterator[RebalancerProcess]:
    """Run the rebalancer and the Prometheus that it asks."""
    workdir = cluster.workdir
    (telemetry,) = free_ports(1)
    async with Exporter.start() as exporter:
        exporter.text = cluster.page
        targets = {"node": exporter.address}
        async with RealPrometheus.start(workdir / "prometheus", targets) as prometheus:
            audit = workdir / "audit.log"
            flags = (
                *("--prometheus-url", prometheus.url, "--identity", "rebalancer-0"),
                *("--audit-log", str(audit)),
            )
            process = RoleProcess(name="rebalancer", role="rebalancer", flags=flags)
            config = kubeconfig or cluster.api.kubeconfig(workdir / "rebalancer.kubeconfig")
            spec = process_spec(process, telemetry_port=telemetry, kubeconfig=config)
            roles = Supervisor([spec], log_dir=workdir)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(roles.run(), name="rebalancer")
                try:
                    await until(lambda: is_ready(telemetry), what="it is ready", limit_s=60)
                    yield RebalancerProcess(roles=roles, telemetry_port=telemetry, audit_file=audit)
                finally:
                    running.cancel()
