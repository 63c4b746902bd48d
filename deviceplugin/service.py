"""Builds the node agent: the only module of this package that names concrete parts."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from component.config_watcher import ConfigWatcher
from component.placement_config import NO_OVERCOMMIT, watch_overcommit
from component.pool_config import watch_pools
from component.wiring import Wiring, Wirings, read_wirings
from deviceplugin.cards.interface import CardHardware, Cards, CardSamples
from deviceplugin.claims import Claim, PodKey
from deviceplugin.cleanup import NodeCleanup
from deviceplugin.container.cdi import CdiFolder, remove_device_files
from deviceplugin.container.cri import RuntimeWatch
from deviceplugin.container.interposer import Interposer
from deviceplugin.container.mps import MpsOfNode
from deviceplugin.container.mps_daemons import MpsDaemons, SurveyBesideDaemons
from deviceplugin.container.nvidia_cdi import NvidiaCdiSpecs
from deviceplugin.container.spec_builder import ContainerSpecBuilder
from deviceplugin.container.verify_hook import VerifyHook
from deviceplugin.dra.card_taints import CardTaints
from deviceplugin.dra.held_claims import HeldClaims
from deviceplugin.dra.preparer import Preparer
from deviceplugin.dra.server import DraServer
from deviceplugin.dra.slices import SlicePublisher, watch_slices
from deviceplugin.dra.starts import ClaimedStarts
from deviceplugin.enforcement.audit import LimitAudit
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.gate import Gate
from deviceplugin.enforcement.kernel import KernelEnforcer
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.exporter.attribution import Attribution, KnownContainers
from deviceplugin.exporter.collector import AgeCollector, CardCollector
from deviceplugin.exporter.consistency import ConsistencyCheck
from deviceplugin.exporter.families import DcgmNaming
from deviceplugin.exporter.load import LoadAverage
from deviceplugin.exporter.load_annotator import LoadAnnotator
from deviceplugin.exporter.overuse import OveruseEvents
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.visible_devices import VisibleDevices
from deviceplugin.handover import ClaimsHandover, Handover, NodeLock
from deviceplugin.identity.node_pods import NodePods
from deviceplugin.identity.starts import ContainerStarts
from deviceplugin.identity.ways import UNDECIDED, Way, Ways
from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.pod_resources import PodResourcesClient
from deviceplugin.kubelet.pre_start import PreStartHandler
from deviceplugin.kubelet.registration import Registration, new_socket
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import (
    NodeState,
    cards_of,
    counted_mib,
    held_mib,
    read_node_state,
    resized_mib,
)
from deviceplugin.node.health import HealthWatch
from deviceplugin.node.health_events import HealthEvents
from deviceplugin.node.inventory import InventoryTracker, Judgement
from deviceplugin.node.node_status import NodeStatusUpdater
from deviceplugin.node.pod_annotator import PodAnnotator
from deviceplugin.node.rejected_pods import RejectedPodCleaner
from deviceplugin.node_wiring import NodeWiring, UsersClaims, choose_wiring, held_by, remove_slice
from deviceplugin.nri.plugin import NriPlugin
from deviceplugin.settings import AUTO, MPS, DevicePluginSettings
from fracgpu import names
from fracgpu.cards.annotations import read_uuids
from fracgpu.cards.card import CardUuid
from fracgpu.cards.card_class import Vendor
from fracgpu.cards.pool_catalogue import PoolCatalogue
from fracgpu.request.need import Isolation
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import Mib
from kube.access import connect
from kube.client import KubeClient
from kube.events import EventRecorder
from kube.informer import Change, Informer
from kube.kinds import NODES, PODS
from process.clock import Clock, SystemClock
from process.heartbeat import Heartbeat
from process.lifecycle import Running, Service
from process.memory import share_one_heap
from process.telemetry import Prepared, ReadyGate, Registry, TelemetryServer, new_registry

_NAME: Final = "deviceplugin"
_LIST: Final = "listing the cards"
_COLLECT: Final = "reading the cards"
_NEEDS_NRI: Final = "it needs NRI in the container runtime"


def build(settings: DevicePluginSettings, cards: Cards) -> Service:
    """Return the agent as a service over *cards*, or what runs beside it."""
    return _mps(settings, cards) if settings.mode == MPS else _agent(settings, cards)


def _mps(settings: DevicePluginSettings, cards: Cards) -> Service:
    """Return the MPS daemons, which are no part of the agent so that they outlive it."""
    registry, gate, clock = new_registry(), ReadyGate(), SystemClock()
    tracker = InventoryTracker(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
    )
    daemons = MpsDaemons(
        settings.mps_dir,
        cards=lambda: _nvidia(tracker),
        program=settings.mps_program,
        clock=clock,
    )
    survey = SurveyBesideDaemons(tracker, daemons, clock, period_s=settings.survey_period_s)
    gate.add("cards", lambda: survey.problem)
    gate.add("daemons", lambda: daemons.problem)

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        try:
            yield Running(tasks={"survey": survey.run, "daemons": daemons.run})
        finally:
            await cards.close()

    return Service(
        name=_NAME,
        open=parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=0.0,
        drain_timeout_s=settings.drain_timeout_s,
    )


def _agent(settings: DevicePluginSettings, cards: Cards) -> Service:
    share_one_heap()
    registry, gate, clock = new_registry(), ReadyGate(), SystemClock()
    prepared = Prepared()
    heartbeats: dict[str, Heartbeat] = {}

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        agent = "fracgpu-deviceplugin"
        async with (
            connect(settings.kubeconfig, user_agent=agent) as client,
            connect(settings.kubeconfig, user_agent=agent, as_user=settings.reads_pods_as) as pods,
        ):
            wirings = await read_wirings(client, namespace=settings.namespace, clock=clock)
            wiring = await choose_wiring(
                client, pods, wirings, node=settings.node_name, clock=clock
            )
            # Not before: an API server that is away is nothing that a restart repairs.
            heartbeats.update(_heartbeats(settings, clock))
            running, handover, cleanup = _parts(
                settings,
                cards,
                client,
                wirings=wirings,
                wiring=wiring,
                pod_reader=pods,
                clock=clock,
                gate=gate,
                registry=registry,
                prepared=prepared,
                heartbeats=heartbeats,
            )
            try:
                yield running
                # A shutdown, not a crash: every task that would write the node again has ended.
                handover.release()
                await cleanup.run()
            finally:
                handover.release()
                await cards.close()

    return Service(
        name=_NAME,
        open=parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry,
            settings.telemetry_host,
            settings.telemetry_port,
            gate.readiness,
            prepared=[prepared],
            liveness=lambda: next(
                filter(None, (heartbeat.problem() for heartbeat in heartbeats.values())), None
            ),
        ),
        # The handover waits once the scheduler knows of it.
        drain_wait_s=0.0,
        drain_timeout_s=settings.drain_timeout_s + settings.drain_wait_s,
    )


def _parts(  # noqa: PLR0913, PLR0915 - what the whole agent is made of; called once
    settings: DevicePluginSettings,
    cards: Cards,
    client: KubeClient,
    *,
    wirings: Wirings,
    wiring: Wiring,
    pod_reader: KubeClient,
    clock: Clock,
    gate: ReadyGate,
    registry: Registry,
    prepared: Prepared,
    heartbeats: Mapping[str, Heartbeat],
) -> tuple[Running, NodeLock, NodeCleanup]:
    node = settings.node_name
    metrics = DevicePluginMetrics(registry)
    health = HealthWatch(hold_s=settings.health_hold_s)
    tracker = InventoryTracker(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
        judgement=lambda: _judgement(health, now_s=clock.monotonic()),
        beat=heartbeats[_LIST].beat,
        on_listed=metrics.cards_listed,
    )

    def pods_changed() -> None:
        node_wiring.changed()
        front.changed()  # which wakes the updater
        limit_audit.pods_changed()

    held = None
    if wiring is Wiring.CLAIMS:
        held = HeldClaims(
            node=node,
            client=client,
            tracker=tracker,
            clock=clock,
            on_change=pods_changed,
        )
    node_pods = held.pods if held is not None else NodePods(on_change=pods_changed)
    pods = Informer(
        pod_reader,
        PODS,
        decode=decode_pod_info,
        field_selector=f"spec.nodeName={node}",
        on_change=(held or node_pods).observe,
    )

    def known_pods() -> Mapping[str, PodInfo] | None:
        known = pods.synced and (held is None or held.complete)
        return node_pods.by_uid if known else None

    def startable_pods() -> Mapping[str, PodInfo] | None:
        known = known_pods()
        return held.settled if known is not None and held is not None else known

    def all_pods() -> Iterable[PodInfo]:
        return node_pods.by_uid.values()

    annotator = PodAnnotator(client, clock)
    pod_resources = PodResourcesClient(
        settings.pod_resources_socket, timeout_s=settings.pod_resources_timeout_s
    )
    runtime = RuntimeWatch(
        settings.cri_socket,
        injection=settings.injection,
        clock=clock,
        period_s=settings.runtime_period_s,
        on_change=lambda: updater.wake(),  # noqa: PLW0108 - it is made below
    )
    recorder = EventRecorder(client, "fracgpu-deviceplugin", clock, instance=node)

    starts = _starts(
        settings,
        wiring=wiring,
        cards=cards,
        tracker=tracker,
        pods=startable_pods,
        clock=clock,
        metrics=metrics,
        on_started=annotator.note,
        on_change=lambda: front.changed(),  # noqa: PLW0108 - it is made below
    )
    node_wiring = NodeWiring(
        wirings=wirings,
        serving=wiring,
        node=lambda: nodes.get("", node),
        pods=known_pods,
        claims_held=_claims_held(held, UsersClaims(client, node=node)),
        settle_s=settings.drain_wait_s,
        clock=clock,
        on_change=lambda: front.changed(),  # noqa: PLW0108 - it is made below
    )
    nodes, pools, overcommit, updater = _node_updater(
        client,
        node,
        namespace=settings.namespace,
        pods=known_pods,
        tracker=tracker,
        health=health,
        runtime=runtime,
        starts=starts,
        front=lambda: front,
        node_wiring=node_wiring,
        by_claims=held is not None,
        clock=clock,
        metrics=metrics,
    )
    shared = _Shared(
        settings=settings,
        wirings=wirings,
        node_wiring=node_wiring,
        client=client,
        tracker=tracker,
        pods=known_pods,
        node=lambda: nodes.get("", node),
        runtime=runtime,
        starts=starts,
        updater=updater,
        pod_resources=pod_resources,
        clock=clock,
        metrics=metrics,
        on_started=annotator.note,
        on_wait=heartbeats[_COLLECT].beat,
    )
    front = _slots_front(shared) if held is None else _claims_front(shared, held)
    handover = front.lock

    consistency = ConsistencyCheck(
        pods=lambda: _by_key(known_pods()),
        pod_resources=pod_resources,
        attribution=Attribution(settings.proc_root, starts.known),
        visible_devices=VisibleDevices(settings.proc_root),
        cards=lambda: tracker.inventory.card_list.cards,
        clock=clock,
        period_s=settings.audit_period_s,
        metrics=metrics,
        dev_root=settings.dev_root,
    )

    def on_samples(samples: CardSamples) -> None:
        health.observe(samples, now_s=clock.monotonic())
        tracker.judge()
        consistency.observe(samples.samples)

    sampler = Sampler(
        cards=cards,
        tracker=tracker,
        attribution=Attribution(settings.proc_root, starts.known),
        pods=all_pods,
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
        counted=lambda: starts.limiter.counted(starts.by_nri.running or {}, node_pods.by_uid),
        on_samples=on_samples,
        on_snapshot=lambda: prepared.prepare(collector.holds()),
        beat=heartbeats[_COLLECT].beat,
    )
    health_events = HealthEvents(
        node=node,
        tracker=tracker,
        pods=all_pods,
        recorder=recorder,
    )
    rejected = RejectedPodCleaner(
        node=node, pods=all_pods, client=client, recorder=recorder, clock=clock
    )
    load_annotator = LoadAnnotator(
        node=node,
        load=LoadAverage(
            average_s=settings.load_average_s,
            gap_s=settings.load_report_s,
            stale_s=3 * settings.collect_period_s,
            headroom_mib=Mib(settings.headroom_mib),
        ),
        latest=sampler.latest,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
    )
    collector = CardCollector(
        node=node,
        latest=sampler.latest,
        now_s=lambda: clock.now().timestamp(),
        period_s=settings.collect_period_s,
        dialect=DcgmNaming(settings.metrics_dialect),
        overuse=lambda: sampler.overuse.lasting,
    )
    prepared.registry.register(collector)
    registry.register(AgeCollector(latest=sampler.latest, now_s=lambda: clock.now().timestamp()))
    for name, problem in {
        "cards": lambda: tracker.problem,
        "pods": lambda: pods.problem,
        "runtime": lambda: runtime.problem or (front.nri_problem() if handover.acts else None),
        # While another agent acts, this one is Ready to follow it.
        "node": lambda: nodes.problem or (updater.problem if handover.acts else None),
        "kubelet": lambda: front.problem() if handover.acts or held is not None else None,
    }.items():
        gate.add(name, problem)
    cleanup = NodeCleanup(
        node=node,
        client=client,
        recorder=recorder,
        pods=all_pods,
        specs=CdiFolder(settings.cdi_dir),
        programs=_programs(settings),
        folders=(settings.mps_dir,),
        withdraw=front.withdraw,
    )

    limit_audit = LimitAudit(
        running=lambda: starts.by_nri.running,
        pods=known_pods,
        cards=lambda: tracker.inventory.by_uuid().keys(),
        limiter=starts.limiter,
        recorder=recorder,
        metrics=metrics,
        clock=clock,
        period_s=settings.audit_period_s,
        writer=client,
        on_probed=updater.wake,
    )
    acting = {
        "load": load_annotator.run,
        "collect": sampler.run,
        "notes": annotator.run,
        "health": health_events.run,
        "refused": rejected.run,
        "overuse": OveruseEvents(
            lasting=lambda: sampler.overuse.lasting,
            recorder=recorder,
            clock=clock,
            period_s=settings.collect_period_s,
        ).run,
        "limits": limit_audit.run,
    }
    running = Running(
        tasks={
            "runtime": runtime.run,
            "pods": pods.run,
            "node": nodes.run,
            "pools": pools.run,
            "placement": overcommit.run,
            "survey": tracker.run,
            "wiring": node_wiring.run,
            "report": handover.when_acting(front.begin, updater.run),
            **{name: handover.when_acting(loop) for name, loop in acting.items()},
            "nri": handover.when_acting(starts.prepare_host, starts.nri.run),
            "audit": handover.when_acting(front.clean, consistency.run),
            **{name: handover.when_acting(loop) for name, loop in front.acting.items()},
            **front.tasks,
        },
        servers=(handover,),
    )
    return running, handover, cleanup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """What differs by the wiring: how kubelet and kube-scheduler know of the node's cards.

    Attributes:
        lock: keeps to one agent at a time; serves kubelet.
        problem: why kubelet does not ask us, or None.
        nri_problem: why the node shares nothing for lack of NRI, or None.
        changed: called when the node, a pod, or the runtime's connection by NRI has changed.
        clean: removes what earlier agents left.
        begin: removes what agents of the other wiring left; nothing is offered before.
        tasks: further loops, and those that run only in the agent that *acts*.
        published: whether the slice is there that stands for the node's capacity.
        withdraw: removes that slice.
    """

    lock: NodeLock
    problem: Callable[[], str | None]
    nri_problem: Callable[[], str | None]
    changed: Callable[[], None]
    clean: Callable[[], Awaitable[None]]
    begin: Callable[[], Awaitable[None]]
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    acting: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)
    published: Callable[[], bool] = lambda: False
    withdraw: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What a front is made of in both wirings."""

    settings: DevicePluginSettings
    wirings: Wirings
    node_wiring: NodeWiring
    client: KubeClient
    tracker: InventoryTracker
    pods: Callable[[], Mapping[str, PodInfo] | None]
    node: Callable[[], NodeState | None]
    runtime: RuntimeWatch
    starts: "_Starts"
    updater: NodeStatusUpdater
    pod_resources: PodResourcesClient
    clock: Clock
    metrics: DevicePluginMetrics
    on_started: Callable[[Claim, str], None]
    on_wait: Callable[[], None]


def _slots_front(shared: _Shared) -> _Front:
    """Return the device plugin: kubelet counts slots, and the node its memory."""
    settings, starts, clock, metrics = shared.settings, shared.starts, shared.clock, shared.metrics
    pre_start = PreStartHandler(
        node=settings.node_name,
        tracker=shared.tracker,
        ways=starts.ways,
        pod_resources=shared.pod_resources,
        pods=shared.pods,
        runtime=shared.runtime,
        builder=starts.builder,
        specs=CdiFolder(settings.cdi_dir),
        hook=starts.hook,
        clock=clock,
        metrics=metrics,
        on_prepared=shared.on_started,
        on_left=starts.by_nri.expect,
    )
    plugin = DevicePlugin(shared.tracker, pre_start)
    server = PluginServer(plugin, new_socket(settings.device_plugins_dir))
    registration = Registration(
        folder=settings.device_plugins_dir,
        server=server,
        plugin=plugin,
        blocked=lambda: (
            shared.runtime.problem
            or starts.ways.problem
            or (UNDECIDED if starts.ways.way() is None else None)
            or _blocked(shared.tracker, shared.node())
            or _not_listed(shared.pods())
            or held_by(Wiring.CLAIMS, shared.pods())
        ),
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
        on_change=shared.updater.wake,
    )
    handover = Handover(
        server=server,
        registration=registration,
        updater=shared.updater,
        pods=lambda: (shared.pods() or {}).values(),  # noqa: PLW0108 - the pods change
        unasked=lambda: starts.by_nri.unasked,
        old_folder=settings.plugins_dir / names.DRA_DRIVER,
        clock=clock,
        settle_s=settings.drain_wait_s,
        on_wait=shared.on_wait,
    )

    def connection_changed() -> None:
        shared.updater.wake()
        plugin.watch_changed.set()  # the registration looks whether there is anything to register

    async def begin() -> None:
        if shared.wirings.both:
            await remove_slice(shared.client, settings.node_name, clock=clock)

    return _Front(
        lock=handover,
        problem=lambda: registration.problem,
        nri_problem=lambda: starts.ways.problem,
        changed=connection_changed,
        clean=pre_start.clean,
        begin=begin,
        tasks={"register": handover.run, "answers": server.raise_mistake},
    )


def _claims_front(shared: _Shared, held: HeldClaims) -> _Front:
    """Return the driver of claims: a slice says what the cards have, and kube-scheduler counts."""
    settings, starts, clock, metrics = shared.settings, shared.starts, shared.clock, shared.metrics
    runtime, node = shared.runtime, settings.node_name
    preparer = Preparer(
        node=node,
        client=shared.client,
        held=held,
        held_by_slots=lambda: held_by(Wiring.DEVICE_PLUGIN, shared.pods()),
        pods=shared.pods,
        tracker=shared.tracker,
        runtime=runtime,
        builder=starts.builder,
        limiter=starts.limiter,
        why_not_limited=lambda: starts.ways.away if starts.ways.way() is Way.NRI else _NEEDS_NRI,
        specs=CdiFolder(settings.cdi_dir),
        clock=clock,
        metrics=metrics,
        on_prepared=shared.on_started,
    )

    def changed() -> None:
        publisher.wake()
        shared.updater.wake()

    server = DraServer(
        claims=preparer,
        plugins_dir=settings.plugins_dir,
        registry_dir=settings.plugins_registry_dir,
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
        on_change=changed,
    )
    slices = watch_slices(shared.client, node, on_change=changed)
    taints = CardTaints(
        node=node,
        client=shared.client,
        current=shared.node,
        tracker=shared.tracker,
        claims=lambda: held.claims,
        clock=clock,
        on_change=changed,
    )

    def withheld() -> str | None:
        broken = runtime.problem if runtime.known else None
        switching = shared.node_wiring.switching
        return (
            broken
            or _not_shared(shared.node())
            or (switching.problem if switching is not None else None)
            or held_by(Wiring.DEVICE_PLUGIN, shared.pods())
            or _still_counted(shared.node())
        )

    def card_class() -> str:
        found = shared.node()
        return found.labels.get(names.CARD_CLASS_LABEL, "") if found is not None else ""

    publisher = SlicePublisher(
        node=node,
        client=shared.client,
        slices=lambda: tuple(slices.items().values()) if slices.synced else None,
        tracker=shared.tracker,
        withheld=withheld,
        unsure=lambda: runtime.problem or server.problem or _not_listed(shared.pods()),
        taints=taints.now,
        isolation=lambda: [each for each, why in (starts.isolation() or {}).items() if not why],
        card_class=card_class,
        clock=clock,
        metrics=metrics,
    )
    handover = ClaimsHandover(
        server, settings.device_plugins_dir, clock=clock, on_wait=shared.on_wait
    )

    async def nothing_left() -> None:
        """Leave all specs: each is of a claim, which kubelet gives back."""

    metrics.identity_is(names.IDENTITY_CLAIMS)
    return _Front(
        lock=handover,
        problem=lambda: (
            server.problem or held_by(Wiring.DEVICE_PLUGIN, shared.pods()) or publisher.dropped
        ),
        nri_problem=lambda: None,
        changed=changed,
        clean=nothing_left,
        begin=nothing_left,
        tasks={
            "serve": handover.run,
            "answers": server.raise_mistake,
            "claims": held.run,
            "slices": slices.run,
            "moves": taints.run,
        },
        acting={"publish": publisher.run, "specs": preparer.run},
        published=lambda: publisher.published,
        withdraw=publisher.remove,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Starts:
    """What decides about container starts."""

    ways: Ways
    by_nri: ContainerStarts
    nri: NriPlugin
    hook: VerifyHook
    limiter: Limiter
    builder: ContainerSpecBuilder
    cards: Callable[[], Sequence[CardHardware]]
    old_links: Path

    def known(self) -> KnownContainers | None:
        """Return the containers that the runtime has named; None where it names none."""
        return self.by_nri.containers if self.ways.way() is Way.NRI else None

    def way(self) -> str:
        """Return by what it is known whose container starts; empty while that is not known."""
        way = self.ways.way()
        return way.value if way is not None else ""

    def isolation(self) -> Mapping[str, str] | None:
        """Return by mechanism why it limits no card, or an empty text; None while unknown."""
        kernel = self.limiter.unlimited if self.ways.way() is Way.NRI else None
        if self.ways.way() is Way.LISTED:
            kernel = _NEEDS_NRI
        cards = self.cards()
        if kernel is None or not cards:
            return None
        found = {Isolation.KERNEL.value: kernel}
        for mechanism in (Isolation.MPS, Isolation.INTERPOSER):
            reasons = (self.builder.why_not(mechanism, [card]) for card in cards)
            found[mechanism.value] = next(filter(None, reasons), "")
        return found

    async def prepare_host(self) -> None:
        await asyncio.to_thread(self.hook.install)
        await asyncio.to_thread(remove_device_files, self.old_links)


def _starts(  # noqa: PLR0913 - its parts, nearly all by keyword; called once
    settings: DevicePluginSettings,
    *,
    wiring: Wiring,
    cards: Cards,
    tracker: InventoryTracker,
    pods: Callable[[], Mapping[str, PodInfo] | None],
    clock: Clock,
    metrics: DevicePluginMetrics,
    on_started: Callable[[Claim, str], None],
    on_change: Callable[[], None],
) -> _Starts:
    builder = ContainerSpecBuilder(
        NvidiaCdiSpecs([Path(folder) for folder in settings.vendor_cdi_dirs]),
        mps=MpsOfNode(settings.mps_dir),
        interposer=Interposer(settings.host_dir / "interposer" / "libvgpu.so"),
    )
    hook = VerifyHook(_programs(settings))
    by_claims = wiring is Wiring.CLAIMS
    ways = Ways(
        hook_problem=lambda: hook.problem,
        clock=clock,
        record=(lambda _: None) if by_claims else metrics.identity_is,
        on_change=on_change,
    )
    limiter = _limiter(settings, cards, tracker, hook)
    loop = asyncio.get_running_loop()

    def started(claim: Claim, isolation: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(on_started, claim, isolation)

    by_nri = (ClaimedStarts if by_claims else ContainerStarts)(
        node=settings.node_name,
        tracker=tracker,
        pods=pods,
        builder=builder,
        limiter=limiter,
        clock=clock,
        metrics=metrics,
        on_started=started,
        dev_root=settings.dev_root,
    )
    return _Starts(
        ways=ways,
        by_nri=by_nri,
        nri=NriPlugin(settings.nri_socket, by_nri, clock, on_status=ways.observe),
        hook=hook,
        limiter=limiter,
        builder=builder,
        cards=lambda: tracker.inventory.card_list.cards,
        old_links=settings.host_dir / "links",
    )


def _heartbeats(settings: DevicePluginSettings, clock: Clock) -> Mapping[str, Heartbeat]:
    """Return the heartbeats of the two loops over the cards, on which all else here depends.

    Each of their calls has a time limit, also where a card hangs. So a loop that is stuck is a
    fault of ours, which a restart repairs. What a restart does not repair is not reported here:
    a card that hangs, a driver or an API server that is away.
    """
    periods_s = {_LIST: settings.survey_period_s, _COLLECT: settings.collect_period_s}
    return {
        name: Heartbeat(clock, name=name, limit_s=settings.standstill_s(period_s=period_s))
        for name, period_s in periods_s.items()
    }


def _limiter(
    settings: DevicePluginSettings, cards: Cards, tracker: InventoryTracker, hook: VerifyHook
) -> Limiter:
    root = settings.cgroup_root
    driver = [DriverEnforcer(cards.limits, root)] if cards.limits is not None else []
    return Limiter(
        (*driver, KernelEnforcer(root)) if settings.limits == AUTO else (),
        cards=lambda: {each.card.uuid: each for each in tracker.inventory.card_list.cards},
        gate=Gate(hook.file, settings.host_dir / "limits", problem=lambda: hook.problem),
        root=root,
    )


def _node_updater(  # noqa: PLR0913 - its parts, nearly all by keyword; called once
    client: KubeClient,
    node: str,
    *,
    namespace: str,
    pods: Callable[[], Mapping[str, PodInfo] | None],
    tracker: InventoryTracker,
    health: HealthWatch,
    runtime: RuntimeWatch,
    starts: _Starts,
    front: Callable[[], _Front],
    node_wiring: NodeWiring,
    by_claims: bool,
    clock: Clock,
    metrics: DevicePluginMetrics,
) -> tuple[
    Informer[NodeState],
    ConfigWatcher[PoolCatalogue],
    ConfigWatcher[Fraction],
    NodeStatusUpdater,
]:
    def changed(change: Change[NodeState]) -> None:
        annotations = change.object.annotations
        health.take_out(read_uuids(annotations.get(names.NODE_OUT_OF_SERVICE, "")))
        if not (health.restored and front().lock.acts):  # else we have written it ourselves
            health.restore(cards_of(change.object), now_s=clock.monotonic())
        tracker.judge()
        updater.wake()
        node_wiring.changed()
        front().changed()

    nodes = Informer(
        client,
        NODES,
        decode=read_node_state,
        field_selector=f"metadata.name={node}",
        on_change=changed,
    )
    pools = watch_pools(
        client, name=names.CONFIG_MAP, namespace=namespace, on_change=lambda _: updater.wake()
    )
    overcommit = watch_overcommit(
        client, name=names.CONFIG_MAP, namespace=namespace, on_change=lambda _: updater.wake()
    )

    def times(card: CardUuid) -> Fraction | None:
        """Where a guarantee does not outlast what others borrow, nothing guaranteed is lent."""
        if not starts.limiter.keeps_guarantees(card):
            return NO_OVERCOMMIT
        return overcommit.value if overcommit.synced else None

    updater = NodeStatusUpdater(
        node=node,
        tracker=tracker,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        metrics=metrics,
        blocked=lambda: runtime.problem or front().nri_problem(),
        way=lambda: names.IDENTITY_CLAIMS if by_claims else starts.way(),
        held_mib=lambda: None if pods() is None else held_mib((pods() or {}).values()),
        resized_mib=lambda: resized_mib((pods() or {}).values()),
        unregistered=lambda: front().problem(),
        isolation=starts.isolation,
        pools=lambda: pools.value,
        overcommit=times,
        switching=lambda: node_wiring.switching,
        published=(lambda: front().published()) if by_claims else None,
    )
    return nodes, pools, overcommit, updater


def _claims_held(
    held: HeldClaims | None, users: UsersClaims
) -> Callable[[Mapping[str, PodInfo]], Awaitable[bool]]:
    async def claims_held(pods: Mapping[str, PodInfo]) -> bool:
        return held.any if held is not None else await users.any(pods)

    return claims_held


def _blocked(tracker: InventoryTracker, node: NodeState | None) -> str | None:
    """Return why there is nothing to register with kubelet yet, or None."""
    if (reason := _not_shared(node)) is not None:
        return reason
    return None if tracker.slots() else tracker.problem or "this node has no cards"


def _not_shared(node: NodeState | None) -> str | None:
    if node is None:
        return "the API server does not have this node"
    if not node.shares:
        return f"the node does not carry {names.SHARE_LABEL}=true"
    return f"another plugin offers the node's cards: {node.counted_by}" if node.others else None


def _not_listed(pods: Mapping[str, PodInfo] | None) -> str | None:
    return "this node's pods are not all known yet" if pods is None else None


def _still_counted(node: NodeState | None) -> str | None:
    """Return why the node has not gone over to claims yet: it says the other wiring's capacity."""
    mib = counted_mib(node) if node is not None else 0
    return f"the node still counts {mib} MiB of {names.GPU_MEM}" if mib else None


def _judgement(health: HealthWatch, *, now_s: float) -> Judgement | None:
    """Return what is said against cards; None until the node has said what it was before."""
    if not health.restored:
        return None
    return Judgement(reasons=health.health_reasons(now_s=now_s), errors=health.errors(now_s=now_s))


def _nvidia(tracker: InventoryTracker) -> Sequence[CardUuid]:
    cards = tracker.inventory.card_list.cards
    return [each.card.uuid for each in cards if each.vendor is Vendor.NVIDIA]


def _by_key(pods: Mapping[str, PodInfo] | None) -> Mapping[PodKey, PodInfo] | None:
    if pods is None:
        return None
    return {(pod.record.namespace, pod.record.name): pod for pod in pods.values()}


def _programs(settings: DevicePluginSettings) -> Path:
    """Return the folder of our programs on the host, under the same path in the container."""
    return settings.host_dir / "bin"
