"""Builds the node agent: the only module of this package that names concrete parts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from component.config_keys import NO_OVERCOMMIT
from component.config_watcher import ConfigWatcher
from component.placement_config import watch_overcommit
from component.pool_config import watch_pools
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
from deviceplugin.handover import Handover
from deviceplugin.identity.node_pods import NodePods
from deviceplugin.identity.starts import ContainerStarts
from deviceplugin.identity.ways import UNDECIDED, Way, Ways
from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.pod_resources import PodResourcesClient
from deviceplugin.kubelet.pre_start import PreStartHandler
from deviceplugin.kubelet.registration import Registration, new_socket
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState, held_mib, read_node_state, resized_mib
from deviceplugin.node.health import HealthWatch
from deviceplugin.node.health_events import HealthEvents
from deviceplugin.node.inventory import InventoryTracker
from deviceplugin.node.node_status import NodeStatusUpdater
from deviceplugin.node.pod_annotator import PodAnnotator
from deviceplugin.node.rejected_pods import RejectedPodCleaner
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
    heartbeats = _heartbeats(settings, clock)

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        agent = "fracgpu-deviceplugin"
        async with (
            connect(settings.kubeconfig, user_agent=agent) as client,
            connect(settings.kubeconfig, user_agent=agent, as_user=settings.reads_pods_as) as pods,
        ):
            running, handover, cleanup = _parts(
                settings,
                cards,
                client,
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
    pod_reader: KubeClient,
    clock: Clock,
    gate: ReadyGate,
    registry: Registry,
    prepared: Prepared,
    heartbeats: Mapping[str, Heartbeat],
) -> tuple[Running, Handover, NodeCleanup]:
    node = settings.node_name
    metrics = DevicePluginMetrics(registry)
    health = HealthWatch(hold_s=settings.health_hold_s)
    tracker = InventoryTracker(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
        health_reasons=lambda: health.health_reasons(now_s=clock.monotonic()),
        beat=heartbeats[_LIST].beat,
        on_listed=metrics.cards_listed,
    )

    def pods_changed() -> None:
        updater.wake()
        limit_audit.pods_changed()

    node_pods = NodePods(on_change=pods_changed)
    pods = Informer(
        pod_reader,
        PODS,
        decode=decode_pod_info,
        field_selector=f"spec.nodeName={node}",
        on_change=node_pods.observe,
    )
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

    def connection_changed() -> None:
        updater.wake()
        plugin.watch_changed.set()  # the registration looks whether there is anything to register

    starts = _starts(
        settings,
        cards=cards,
        tracker=tracker,
        pods=lambda: node_pods.by_uid if pods.synced else None,
        pod_resources=pod_resources,
        runtime=runtime,
        clock=clock,
        metrics=metrics,
        on_started=annotator.note,
        on_change=connection_changed,
    )
    plugin = DevicePlugin(tracker, starts.pre_start)
    nodes, pools, overcommit, updater = _node_updater(
        client,
        node,
        namespace=settings.namespace,
        pods=pods,
        tracker=tracker,
        health=health,
        runtime=runtime,
        ways=starts.ways,
        unregistered=lambda: registration.problem,
        isolation=starts.isolation,
        keeps_guarantees=starts.limiter.keeps_guarantees,
        clock=clock,
        metrics=metrics,
    )
    server = PluginServer(plugin, new_socket(settings.device_plugins_dir))
    registration = Registration(
        folder=settings.device_plugins_dir,
        server=server,
        plugin=plugin,
        blocked=lambda: (
            runtime.problem
            or starts.ways.problem
            or (UNDECIDED if starts.ways.way() is None else None)
            or _blocked(tracker, nodes.get("", node))
        ),
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
        on_change=updater.wake,
    )

    handover = Handover(
        server=server,
        registration=registration,
        updater=updater,
        pods=lambda: _values(pods),
        unasked=lambda: starts.by_nri.unasked,
        clock=clock,
        settle_s=settings.drain_wait_s,
        on_wait=heartbeats[_COLLECT].beat,
    )

    consistency = ConsistencyCheck(
        pods=lambda: _by_key(pods),
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
        consistency.observe(samples.samples)

    sampler = Sampler(
        cards=cards,
        tracker=tracker,
        attribution=Attribution(settings.proc_root, starts.known),
        pods=lambda: _values(pods),
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
        pods=lambda: _values(pods),
        recorder=recorder,
    )
    rejected = RejectedPodCleaner(
        node=node, pods=lambda: _values(pods), client=client, recorder=recorder, clock=clock
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
        "pods": lambda: None if pods.synced else "this node's pods are not listed yet",
        "runtime": lambda: runtime.problem or (starts.ways.problem if handover.acts else None),
        # While another agent acts, this one is Ready to follow it.
        "node": lambda: updater.problem if handover.acts else None,
        "kubelet": lambda: registration.problem if handover.acts else None,
    }.items():
        gate.add(name, problem)
    cleanup = NodeCleanup(
        node=node,
        client=client,
        recorder=recorder,
        pods=lambda: _values(pods),
        specs=CdiFolder(settings.cdi_dir),
        programs=_programs(settings),
        folders=(settings.mps_dir,),
    )

    limit_audit = LimitAudit(
        running=lambda: starts.by_nri.running,
        pods=lambda: node_pods.by_uid if pods.synced else None,
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
        "report": updater.run,
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
            **{name: handover.when_acting(loop) for name, loop in acting.items()},
            "nri": handover.when_acting(starts.prepare_host, starts.nri.run),
            "audit": handover.when_acting(starts.pre_start.clean, consistency.run),
            "register": handover.run,
        },
        servers=(handover,),
    )
    return running, handover, cleanup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Starts:
    """What decides about container starts."""

    ways: Ways
    by_nri: ContainerStarts
    nri: NriPlugin
    pre_start: PreStartHandler
    hook: VerifyHook
    limiter: Limiter
    builder: ContainerSpecBuilder
    cards: Callable[[], Sequence[CardHardware]]
    old_links: Path

    def known(self) -> KnownContainers | None:
        """Return the containers that the runtime has named; None where it names none."""
        return self.by_nri.containers if self.ways.way() is Way.NRI else None

    def isolation(self) -> Mapping[str, str] | None:
        """Return by mechanism why it limits no card, or an empty text; None while unknown."""
        kernel = self.limiter.unlimited if self.ways.way() is Way.NRI else None
        if self.ways.way() is Way.LISTED:
            kernel = "it needs NRI in the container runtime"
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
    cards: Cards,
    tracker: InventoryTracker,
    pods: Callable[[], Mapping[str, PodInfo] | None],
    pod_resources: PodResourcesClient,
    runtime: RuntimeWatch,
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
    ways = Ways(
        hook_problem=lambda: hook.problem, clock=clock, metrics=metrics, on_change=on_change
    )
    limiter = _limiter(settings, cards, tracker, hook)
    loop = asyncio.get_running_loop()

    def started(claim: Claim, isolation: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(on_started, claim, isolation)

    by_nri = ContainerStarts(
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
    pre_start = PreStartHandler(
        node=settings.node_name,
        tracker=tracker,
        ways=ways,
        pod_resources=pod_resources,
        pods=pods,
        runtime=runtime,
        builder=builder,
        specs=CdiFolder(settings.cdi_dir),
        hook=hook,
        clock=clock,
        metrics=metrics,
        on_prepared=on_started,
        on_left=by_nri.expect,
    )
    return _Starts(
        ways=ways,
        by_nri=by_nri,
        nri=NriPlugin(settings.nri_socket, by_nri, clock, on_status=ways.observe),
        pre_start=pre_start,
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
    pods: Informer[PodInfo],
    tracker: InventoryTracker,
    health: HealthWatch,
    runtime: RuntimeWatch,
    ways: Ways,
    unregistered: Callable[[], str | None],
    isolation: Callable[[], Mapping[str, str] | None],
    keeps_guarantees: Callable[[CardUuid], bool],
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
        updater.wake()

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
        if not keeps_guarantees(card):
            return NO_OVERCOMMIT
        return overcommit.value if overcommit.synced else None

    updater = NodeStatusUpdater(
        node=node,
        tracker=tracker,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        metrics=metrics,
        blocked=lambda: runtime.problem or ways.problem,
        way=lambda: way.value if (way := ways.way()) is not None else "",
        held_mib=lambda: held_mib(_values(pods)) if pods.synced else None,
        resized_mib=lambda: resized_mib(_values(pods)),
        unregistered=unregistered,
        isolation=isolation,
        pools=lambda: pools.value,
        overcommit=times,
    )
    return nodes, pools, overcommit, updater


def _blocked(tracker: InventoryTracker, node: NodeState | None) -> str | None:
    """Return why there is nothing to register with kubelet yet, or None."""
    if node is None:
        return "the API server does not have this node"
    if not node.shares:
        return f"the node does not carry {names.SHARE_LABEL}=true"
    if node.others:
        return f"another plugin offers the node's cards: {node.counted_by}"
    return None if tracker.slots() else tracker.problem or "this node has no cards"


def _nvidia(tracker: InventoryTracker) -> Sequence[CardUuid]:
    cards = tracker.inventory.card_list.cards
    return [each.card.uuid for each in cards if each.vendor is Vendor.NVIDIA]


def _by_key(pods: Informer[PodInfo]) -> Mapping[PodKey, PodInfo] | None:
    if not pods.synced:
        return None
    return {(key.namespace, key.name): pod for key, pod in pods.items().items()}


def _values(pods: Informer[PodInfo]) -> Iterable[PodInfo]:
    return pods.items().values()


def _programs(settings: DevicePluginSettings) -> Path:
    """Return the folder of our programs on the host, under the same path in the container."""
    return settings.host_dir / "bin"
