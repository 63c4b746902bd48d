"""Puts the node agent together: the only module of this package that names concrete parts."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deviceplugin.cards.interface import Cards, CardSamples
from deviceplugin.claims import PodKey
from deviceplugin.cleanup import NodeCleanup
from deviceplugin.container.cdi import CdiFolder
from deviceplugin.container.cri import RuntimeWatch
from deviceplugin.container.device_links import LinkFolder
from deviceplugin.container.injection import AllocatedFolders, Injection
from deviceplugin.container.mps import MpsDaemons
from deviceplugin.container.nvidia_cdi import NvidiaCdiSpecs
from deviceplugin.container.spec_builder import MPS, ContainerSpecBuilder, Enforcer
from deviceplugin.exporter.attribution import Attribution
from deviceplugin.exporter.collector import AgeCollector, CardCollector
from deviceplugin.exporter.consistency import ConsistencyCheck
from deviceplugin.exporter.families import DcgmNaming
from deviceplugin.exporter.load import LoadAverage
from deviceplugin.exporter.load_annotator import LoadAnnotator
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.visible_devices import VisibleDevices
from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.pod_resources import PodResourcesClient
from deviceplugin.kubelet.pre_start import PreStartHandler
from deviceplugin.kubelet.registration import PLUGIN_SOCKET, Registration
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState, held_mib, read_node_state
from deviceplugin.node.health import HealthWatch, out_of_service
from deviceplugin.node.health_events import HealthEvents
from deviceplugin.node.inventory import InventoryTracker
from deviceplugin.node.node_status import NodeStatusUpdater
from deviceplugin.node.pod_annotator import PodAnnotator
from deviceplugin.node.rejected_pods import RejectedPodCleaner
from deviceplugin.settings import DevicePluginSettings
from fracgpu import names
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
_SURVEY: Final = "looking at the cards"
_COLLECT: Final = "reading the cards"


def build(settings: DevicePluginSettings, cards: Cards) -> Service:
    """Put the agent together around *cards*."""
    share_one_heap()
    registry, gate, clock = new_registry(), ReadyGate(), SystemClock()
    prepared = Prepared()
    hearts = _hearts(settings, clock)

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-deviceplugin") as client:
            running, farewell = _parts(
                settings,
                cards,
                client,
                clock=clock,
                gate=gate,
                registry=registry,
                prepared=prepared,
                hearts=hearts,
            )
            try:
                yield running
                # Told to stop, not crashed: all that would write the node again has ended.
                await farewell.run()
            finally:
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
            liveness=lambda: next(filter(None, (it.problem() for it in hearts.values())), None),
        ),
        drain_wait_s=settings.drain_wait_s,
        drain_limit_s=settings.drain_limit_s,
    )


def _parts(  # noqa: PLR0913 - what the whole agent is made of; called once
    settings: DevicePluginSettings,
    cards: Cards,
    client: KubeClient,
    *,
    clock: Clock,
    gate: ReadyGate,
    registry: Registry,
    prepared: Prepared,
    hearts: Mapping[str, Heartbeat],
) -> tuple[Running, NodeCleanup]:
    node = settings.node_name
    metrics = DevicePluginMetrics(registry)
    health = HealthWatch(hold_s=settings.health_hold_s)
    tracker = InventoryTracker(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
        ailments=lambda: health.health_reasons(now_s=clock.monotonic()),
        beat=hearts[_SURVEY].beat,
        on_survey=metrics.surveyed,
    )
    pods = Informer(
        client,
        PODS,
        decode=decode_pod_info,
        field_selector=f"spec.nodeName={node}",
        on_change=lambda _: report.wake(),
    )
    notes = PodAnnotator(client)
    pod_resources = PodResourcesClient(
        settings.pod_resources_socket, timeout_s=settings.pod_resources_timeout_s
    )
    specs = CdiFolder(settings.cdi_dir)
    links = LinkFolder(settings.links_dir, dev_root=settings.dev_root)
    runtime = RuntimeWatch(
        settings.cri_socket,
        injection=settings.injection,
        clock=clock,
        period_s=settings.runtime_period_s,
        metrics=metrics,
        on_change=lambda: report.wake(),  # noqa: PLW0108 - it is made below
    )
    injection = Injection(
        specs, links, AllocatedFolders(settings.links_dir / ".handed-out"), runtime
    )
    recorder = EventRecorder(client, "fracgpu-deviceplugin", clock, instance=node)
    mps = _mps(settings, clock)
    wiring = PreStartHandler(
        node=node,
        tracker=tracker,
        pod_resources=pod_resources,
        reader=client,
        pods=lambda: _by_key(pods),
        builder=ContainerSpecBuilder(
            NvidiaCdiSpecs([Path(it) for it in settings.vendor_cdi_dirs]),
            enforcer=Enforcer(settings.enforcer),
            mps=mps,
        ),
        places=injection,
        clock=clock,
        pod_lookup_timeout_s=settings.pod_lookup_timeout_s,
        metrics=metrics,
        on_wired=notes.note,
    )
    plugin = DevicePlugin(tracker, wiring, injection, links_visible=settings.links_visible_devices)
    nodes, report = _node_report(
        client,
        node,
        pods=pods,
        tracker=tracker,
        health=health,
        runtime=runtime,
        clock=clock,
        metrics=metrics,
    )
    server = PluginServer(plugin, settings.device_plugins_dir / PLUGIN_SOCKET)
    registration = Registration(
        folder=settings.device_plugins_dir,
        server=server,
        plugin=plugin,
        blocked=lambda: runtime.problem or _blocked(tracker, nodes.get("", node)),
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
    )
    audit = ConsistencyCheck(
        pods=lambda: _by_key(pods),
        pod_resources=pod_resources,
        specs=specs,
        attribution=Attribution(settings.proc_root),
        seen=VisibleDevices(settings.proc_root),
        cards=lambda: tracker.inventory.card_list.cards,
        clock=clock,
        period_s=settings.audit_period_s,
        metrics=metrics,
        dev_root=settings.dev_root,
    )

    def on_round(round_: CardSamples) -> None:
        health.observe(round_, now_s=clock.monotonic())
        audit.observe(round_.samples)

    exporter = Sampler(
        cards=cards,
        tracker=tracker,
        attribution=Attribution(settings.proc_root),
        pods=lambda: _values(pods),
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
        on_round=on_round,
        on_picture=lambda: prepared.prepare(collector.holds()),
        beat=hearts[_COLLECT].beat,
    )
    health_events = HealthEvents(
        node=node,
        tracker=tracker,
        pods=lambda: _values(pods),
        recorder=recorder,
    )
    refused = RejectedPodCleaner(
        node=node, pods=lambda: _values(pods), client=client, recorder=recorder, clock=clock
    )
    load_report = LoadAnnotator(
        node=node,
        load=LoadAverage(
            average_s=settings.load_average_s,
            gap_s=settings.load_report_s,
            stale_s=3 * settings.collect_period_s,
            headroom_mib=settings.headroom_mib,
        ),
        picture=exporter.latest,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
    )
    collector = CardCollector(
        node=node,
        picture=exporter.latest,
        now_s=lambda: clock.now().timestamp(),
        period_s=settings.collect_period_s,
        dialect=DcgmNaming(settings.metrics_dialect),
    )
    prepared.registry.register(collector)
    registry.register(AgeCollector(picture=exporter.latest, now_s=lambda: clock.now().timestamp()))
    for name, problem in {
        "cards": lambda: tracker.problem,
        "pods": lambda: None if pods.synced else "this node's pods are not listed yet",
        "node": lambda: report.problem,
        "runtime": lambda: runtime.problem,
        "kubelet": lambda: registration.problem,
    }.items():
        gate.add(name, problem)
    farewell = NodeCleanup(
        node=node,
        client=client,
        recorder=recorder,
        pods=lambda: _values(pods),
        pod_resources=pod_resources,
        specs=specs,
        links=links,
        handed_out=injection.handed_out,
        folders=(settings.mps_dir,),
    )

    async def survey() -> None:
        await wiring.clean()
        await tracker.run()

    running = Running(
        tasks={
            "runtime": runtime.run,
            "pods": pods.run,
            "node": nodes.run,
            "survey": survey,
            "report": report.run,
            "load": load_report.run,
            "collect": exporter.run,
            "notes": notes.run,
            "health": health_events.run,
            "refused": refused.run,
            "audit": audit.run,
            **({"mps": mps.run} if mps is not None else {}),
            "register": registration.run,
        },
        servers=(server,),
    )
    return running, farewell


def _hearts(settings: DevicePluginSettings, clock: Clock) -> Mapping[str, Heartbeat]:
    """Give the heartbeats of the loops that everything else here lives on.

    Each of their calls ends in time, a card's that hangs as well, so a loop that stands still is
    our own fault, and starting anew heals it. What a restart does not heal is no matter of theirs:
    a card that hangs, a driver or an API server that is away.
    """
    periods_s = {_SURVEY: settings.survey_period_s, _COLLECT: settings.collect_period_s}
    return {
        name: Heartbeat(clock, name=name, limit_s=settings.standstill_s(period_s=period_s))
        for name, period_s in periods_s.items()
    }


def _mps(settings: DevicePluginSettings, clock: Clock) -> MpsDaemons | None:
    if settings.isolation != MPS:
        return None
    return MpsDaemons(settings.mps_dir, program=settings.mps_program, clock=clock)


def _node_report(  # noqa: PLR0913 - its parts, nearly all by keyword; called once
    client: KubeClient,
    node: str,
    *,
    pods: Informer[PodInfo],
    tracker: InventoryTracker,
    health: HealthWatch,
    runtime: RuntimeWatch,
    clock: Clock,
    metrics: DevicePluginMetrics,
) -> tuple[Informer[NodeState], NodeStatusUpdater]:
    def changed(change: Change[NodeState]) -> None:
        notes = change.object.annotations
        health.take_out(out_of_service(notes.get(names.NODE_OUT_OF_SERVICE, "")))
        report.wake()

    nodes = Informer(
        client,
        NODES,
        decode=read_node_state,
        field_selector=f"metadata.name={node}",
        on_change=changed,
    )
    report = NodeStatusUpdater(
        node=node,
        tracker=tracker,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        metrics=metrics,
        hindrance=lambda: runtime.problem,
        held_mib=lambda: held_mib(_values(pods)) if pods.synced else None,
    )
    return nodes, report


def _blocked(tracker: InventoryTracker, node: NodeState | None) -> str | None:
    """Say why there is nothing to register with kubelet yet."""
    if node is None:
        return "the node is not known to the API server"
    if not node.shares:
        return f"the node does not carry {names.SHARE_LABEL}=true"
    if node.others:
        return f"the node's cards are counted by another plugin: {node.counted_by}"
    return None if tracker.slots() else tracker.problem or "this node has no cards"


def _by_key(pods: Informer[PodInfo]) -> Mapping[PodKey, PodInfo] | None:
    if not pods.synced:
        return None
    return {(key.namespace, key.name): pod for key, pod in pods.items().items()}


def _values(pods: Informer[PodInfo]) -> Iterable[PodInfo]:
    return pods.items().values()
