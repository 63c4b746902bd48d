"""A small cluster in the embedded API server, and a rebalancer that sees what tests say."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry

from component.wiring import Wirings
from fracgpu import names
from fracgpu.cards.card import CardUuid, CordonEffect, NodeCards
from fracgpu.disruption.heat import CardReading
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.state.move_object import Move, MovePhase, decode_move
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.reservation import reservation_of
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.errors import AlreadyExists, KubeError
from kube.events import EventRecorder
from kube.kinds import EVENTS, JOBS, MOVES, NAMESPACES, NODES, PDBS, PODS, REPLICASETS
from kube.objects import decode_object
from process.clock import SystemClock
from rebalancer.cluster_cache import ClusterCache
from rebalancer.controller import Controller, ControllerParts
from rebalancer.event_reporter import EventReporter
from rebalancer.metrics import RebalancerMetrics
from rebalancer.moves.cordons import Cordons
from rebalancer.moves.executor import MoveExecutor
from rebalancer.moves.janitor import Janitor
from rebalancer.moves.observer import Observer
from rebalancer.moves.side_effects import SideEffects
from rebalancer.moves.store import MoveStore
from rebalancer.usage.measured import Measured
from rebalancer.usage.prometheus import QueryError
from simulator.background import background
from simulator.controllers.manager import run_controllers
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import VirtualClock
from tests.support.core import a_card
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.rebalancing import (
    COOL_CARD,
    HOT_CARD,
    LONG_AGO,
    a_reading,
    usage_of,
)
from tests.support.waiting import until

# Times with which a rebalancer decides within seconds.
SHORT_TIMES: Final[Mapping[str, Any]] = {
    "tick_s": 1,
    "startup_grace_s": 0,
    "fast_window_s": 5,
    "slow_window_s": 10,
    "forecast_window_s": 10,
    "memory_window_s": 10,
    "step_s": 1,
}

NAMESPACE: Final = "ml"
OWNER: Final = "web"
HASH: Final = "5d4f8c7b9"
LABELS: Final = {"app": "web", "pod-template-hash": HASH}


async def make_cluster(
    kube: KubeClient, *, annotations: Mapping[str, str] | None = None, pods: int = 2
) -> None:
    """Create two nodes of one card each; pods pod-a and pod-b of one owner are on the hot one.

    The owner is a ReplicaSet as a Deployment makes it. Without *annotations* its pods are moved by
    a surge.
    """
    await install_definitions(kube)
    for namespace in (NAMESPACE, names.SYSTEM_NAMESPACE):
        with suppress(AlreadyExists):
            await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    await register(kube, a_sharing_node("n1", cards=[a_card(HOT_CARD)]))
    await register(kube, a_sharing_node("n2", cards=[a_card(COOL_CARD)]))
    await kube.create(REPLICASETS, a_replicaset(pods, annotations=annotations))
    for name in ("pod-a", "pod-b", "pod-c")[:pods]:
        await add_pod(kube, name, annotations=annotations)
    await set_owner_ready(kube, pods)


def a_replicaset(replicas: int, *, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a ReplicaSet as a Deployment makes it."""
    template = a_gpu_pod("template", mib=4000, namespace=NAMESPACE, annotations=annotations)
    metadata = {"labels": LABELS, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": OWNER, "namespace": NAMESPACE, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }


async def set_owner_ready(kube: KubeClient, ready: int) -> None:
    """Write the ReplicaSet's status, as its controller does."""
    owner = await kube.get_object(REPLICASETS, OWNER, namespace=NAMESPACE)
    status = {
        "replicas": owner["spec"]["replicas"],
        "readyReplicas": ready,
        "observedGeneration": owner["metadata"].get("generation", 1),
    }
    await kube.patch(
        REPLICASETS, OWNER, {"status": status}, namespace=NAMESPACE, subresource="status"
    )


async def scale(kube: KubeClient, replicas: int) -> None:
    await kube.patch(REPLICASETS, OWNER, {"spec": {"replicas": replicas}}, namespace=NAMESPACE)


async def add_pod(  # noqa: PLR0913 - the facts that tests vary
    kube: KubeClient,
    name: str,
    *,
    card: CardUuid = HOT_CARD,
    node: str = "n1",
    mib: int = 4000,
    ready: bool = True,
    annotations: Mapping[str, str] | None = None,
    move: str = "",
) -> str:
    """Create a pod that runs on a card; returns its UID.

    *move* names the Move whose reservation it consumed, as the Binding does.
    """
    owner = await kube.get_object(REPLICASETS, OWNER, namespace=NAMESPACE)
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": OWNER,
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    written = {names.ASSIGNMENT: _assignment(card, mib), **(annotations or {})}
    body = a_gpu_pod(
        name,
        mib=mib,
        namespace=NAMESPACE,
        annotations=written | ({names.MOVE: move} if move else {}),
        nodeName=node,
    )
    body["metadata"] |= {"ownerReferences": [reference], "labels": LABELS}
    created = await kube.create(PODS, body)
    await set_ready(kube, name, ready=ready)
    uid: str = created["metadata"]["uid"]
    return uid


def _assignment(card: CardUuid, mib: int) -> str:
    return write_assignment({"train": (Slice(card=card, mib=Mib(mib)),)})


async def schedule(
    kube: KubeClient, *, card: CardUuid | None = None, node: str = "n2", ready: bool = True
) -> list[str]:
    """Bind every pending pod, as scheduler and extender do, and let it run; returns their names.

    The first pod of the controller that a Move reserves a card for gets that card, and the name of
    the Move; with *card* nobody honours reservations.
    """
    bound = []
    moves = [decode_move(bytes(raw)) for raw in (await kube.list(MOVES)).items]
    pods = [decode_pod_info(bytes(raw)) for raw in (await kube.list(PODS)).items]
    used = {pod.annotations.get(names.MOVE) for pod in pods}
    for pod in pods:
        if pod.record.node or pod.record.terminating or not pod.owner:
            continue
        wanted = [
            found
            for found in map(reservation_of, moves)
            if found and found.owner_uid == pod.owner[2] and found.move not in used
        ]
        annotations = {names.ASSIGNMENT: _assignment(card or COOL_CARD, 4000)}
        where = node
        if wanted and card is None:
            where = wanted[0].node
            annotations = {
                names.ASSIGNMENT: _assignment(wanted[0].card, 4000),
                names.MOVE: wanted[0].move,
            }
            used.add(wanted[0].move)
        binding = {"metadata": {"annotations": annotations}, "target": {"name": where}}
        await kube.bind(binding, namespace=NAMESPACE, name=pod.record.name)
        await set_ready(kube, pod.record.name, ready=ready)
        bound.append(pod.record.name)
    return bound


async def set_ready(kube: KubeClient, name: str, *, ready: bool) -> None:
    status = {
        "phase": "Running",
        "startTime": f"{LONG_AGO:%Y-%m-%dT%H:%M:%SZ}",
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    await kube.patch(PODS, name, {"status": status}, namespace=NAMESPACE, subresource="status")


async def play_kubelets(
    kube: KubeClient,
    pods: Callable[[], Awaitable[Collection[PodInfo]]],
    *,
    unready: Callable[[PodInfo], bool] = lambda _: False,
) -> None:
    """Run every pod that is bound, and end every pod that is terminating, until cancelled.

    Those that are *unready* do not become Ready.
    """
    while True:
        with suppress(KubeError):  # the API server is down for a moment
            for pod in await pods():
                with suppress(KubeError):  # it changed meanwhile
                    await _play_kubelet(kube, pod, unready=unready(pod))
        await asyncio.sleep(0.1)


async def _play_kubelet(kube: KubeClient, pod: PodInfo, *, unready: bool) -> None:
    name = pod.record.name
    if pod.record.terminating:
        if pod.owner and pod.owner[0] == JOBS.kind:  # only a pod that ended is counted
            ended = {"status": {"phase": "Failed"}}
            await kube.patch(PODS, name, ended, namespace=NAMESPACE, subresource="status")
        await end_pod(kube, name)
    elif pod.record.node and not pod.ready and not unready:
        await set_ready(kube, name, ready=True)


async def end_pod(kube: KubeClient, name: str) -> None:
    """Remove a pod at once, as its kubelet does after the grace period."""
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def add_budget(kube: KubeClient, *, allowed: int, name: str = "web") -> None:
    """Create a PodDisruptionBudget over the pods, with the status of its controller."""
    body = {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    with suppress(AlreadyExists):
        await kube.create(PDBS, body)
    budget = await kube.get_object(PDBS, name, namespace=NAMESPACE)
    status = {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 2,
    }
    await kube.patch(PDBS, name, {"status": status}, namespace=NAMESPACE, subresource="status")


async def events(kube: KubeClient) -> list[str]:
    """Return the reasons of all Events of the rebalancer so far, oldest first.

    What is told on several objects counts once.
    """
    found: dict[tuple[str, str], str] = {}
    for namespace in ("default", NAMESPACE, names.SYSTEM_NAMESPACE):
        for raw in (await kube.list(EVENTS, namespace=namespace)).items:
            event = decode_object(bytes(raw))
            if event["source"].get("component", "").endswith("rebalancer"):
                key = (event["reason"], event["message"])
                found[key] = min(found.get(key, event["eventTime"]), event["eventTime"])
    return [reason for reason, _ in sorted(found, key=lambda key: (found[key], key))]


@dataclass
class Usage:
    """What the rebalancer will measure; None is a card without a trusted reading."""

    readings: dict[CardUuid, CardReading | None] = field(default_factory=dict)
    trouble: str = ""

    async def observe(self, cards: Collection[CardUuid], _: RebalancerPolicy) -> Measured:
        readings = {} if self.trouble else self.readings
        return Measured(
            usage={uuid: usage_of(uuid, readings.get(uuid)) for uuid in cards},
            trouble=self.trouble,
            error=QueryError(self.trouble.partition(":")[0]) if self.trouble else None,
        )


@dataclass
class Config:
    value: RebalancerPolicy
    problem: str = ""


@dataclass
class Placement:
    value: Strategy = DEFAULT_STRATEGY


class Rig:
    """One rebalancer process: all that a crash loses, without the API server."""

    def __init__(
        self,
        kube: KubeClient,
        usage: Usage,
        config: Config,
        clock: VirtualClock,
        effects: type[SideEffects],
        **parts: Any,
    ) -> None:
        self.kube, self.usage, self.config, self.clock = kube, usage, config, clock
        self.registry = CollectorRegistry()
        self.metrics = RebalancerMetrics(self.registry)
        self.may_write = True
        writer = kube.guarded(self._guard)
        self.placement = Placement()
        self.cache = ClusterCache(kube, Wirings())
        self.store = MoveStore(writer)
        self.effects = effects(writer)
        self.changed = asyncio.Event()
        recorder = EventRecorder(writer, "rebalancer", clock)
        reporter = EventReporter(recorder, self.metrics, namespace=names.SYSTEM_NAMESPACE)
        self.executor = MoveExecutor(
            Observer(kube),
            self.effects,
            reporter,
            self.store.put,
        )
        self.loop = Controller(
            ControllerParts(
                cache=self.cache,
                usage=usage,
                config=config,
                placement=self.placement,
                changed=self.changed,
                store=self.store,
                executor=self.executor,
                janitor=Janitor(writer, self.store),
                cordons=Cordons(writer),
                reporter=reporter,
                metrics=self.metrics,
                clock=clock,
                scheduler_name=names.SCHEDULER_NAME,
                **parts,
            )
        )

    def _guard(self) -> None:
        if not self.may_write:
            raise PermissionError("not the leader")

    async def tick(self, seconds: float = 15) -> None:
        """Let time pass and the informers catch up, and run one cycle."""
        await self.clock.advance(seconds)
        await until(self._caught_up, what="the informers caught up")
        await self.loop.cycle()

    async def tick_until_planned(self) -> Move:
        """Tick until a move is recorded, which takes two hot cycles."""
        for _ in range(4):
            await self.tick()
            if self.store.moves:
                return self.store.moves[-1]
        raise AssertionError("no move was planned")

    async def tick_until_disturbed(
        self, kube: KubeClient
    ) -> list[tuple[CordonEffect | None, list[MovePhase]]]:
        """Tick until a move is beyond its plan; returns after each tick what happened so far.

        That is what the cordon of the hot card does, and the phases of all moves.
        """
        history: list[tuple[CordonEffect | None, list[MovePhase]]] = []
        while not history or history[-1][1] in ([], [MovePhase.PLANNED]):
            await self.tick()
            phases = [record.phase for record in self.store.moves]
            history.append(((await effects_of(kube, "n1")).get(HOT_CARD), phases))
        return history

    def record(self) -> Move:
        """The only move on record."""
        (record,) = self.store.moves
        return record

    def figure(self, name: str, **labels: str) -> float:
        """Return the value of one of the rebalancer's own metrics."""
        value = self.registry.get_sample_value(f"fracgpu_rebalancer_{name}", labels)
        assert value is not None, name
        return value

    async def _caught_up(self) -> bool:
        pods = [decode_pod_info(bytes(raw)) for raw in (await self.kube.list(PODS)).items]
        there = {pod.record.uid: pod.record.resource_version for pod in pods if pod.record.live}
        here = {
            uid: pod.info.record.resource_version for uid, pod in self.cache.placed_pods.items()
        }
        nodes = [read_node(bytes(raw)) for raw in (await self.kube.list(NODES)).items]
        return there == here and {node.node: node for node in nodes} == dict(self.cache.nodes)


@asynccontextmanager
async def a_rig(
    kube: KubeClient,
    *,
    usage: Usage | None = None,
    policy: RebalancerPolicy | None = None,
    clock: VirtualClock | None = None,
    effects: type[SideEffects] = SideEffects,
    **parts: Any,
) -> AsyncIterator[Rig]:
    """Run a rebalancer's informers until the block ends; the test calls the cycles.

    *parts* are further ones of the controller.
    """
    default = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0)
    rig = Rig(
        kube,
        usage or await hot_usage(kube),
        Config(policy or default),
        clock or VirtualClock(),
        effects,
        **parts,
    )
    async with background(*(task() for name, task in rig.cache.tasks().items())):
        async with asyncio.timeout(10):
            await rig.cache.wait_synced()
        yield rig


async def hot_usage(kube: KubeClient) -> Usage:
    """Return usage as from Prometheus: both pods share the hot card, the other card idles."""
    pods = [
        decode_pod_info(bytes(raw)) for raw in (await kube.list(PODS, namespace=NAMESPACE)).items
    ]
    busy = {pod.record.uid: 0.45 for pod in pods}
    return Usage({HOT_CARD: a_reading(0.9, pods=busy), COOL_CARD: a_reading(0.05)})


async def cordons_of(kube: KubeClient, node: str) -> dict[str, Any]:
    """Return the cordons on a node in the API server: card to reason."""
    found: NodeCards = read_node(await kube.get(NODES, node))
    return {cordon.card: cordon.reason for cordon in found.cordons}


async def effects_of(kube: KubeClient, node: str) -> dict[CardUuid, CordonEffect]:
    """Return what the cordons on a node in the API server do, by card."""
    found: NodeCards = read_node(await kube.get(NODES, node))
    return {cordon.card: cordon.effect for cordon in found.cordons}


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

    async def wait_owned(self, *, owned: bool = True) -> None:
        """Wait until pod-a has an owner, or has none."""

        async def is_so() -> bool:
            return ((await self.pod()).owner is not None) is owned

        await until(is_so, what=f"pod-a owned: {owned}")

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

    async def released(self) -> bool:
        """Report whether pod-a carries the marks of a surge."""
        return names.MOVED_BY in (await self.pod()).annotations


@asynccontextmanager
async def a_surge_cluster(kube: KubeClient, **rig: Any) -> AsyncIterator[SurgeCluster]:
    """Run controllers and a rebalancer over one ReplicaSet on a hot card."""
    await make_cluster(kube)
    async with (
        background(run_controllers(kube, SystemClock())),
        a_rig(kube, **rig) as found,
    ):
        yield SurgeCluster(kube, found)
