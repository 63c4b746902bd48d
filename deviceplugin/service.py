"""Puts the node agent together: the only module of this package that names concrete parts."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from deviceplugin.acknowledge import WiredNotes
from deviceplugin.attribution import Attribution
from deviceplugin.capacity import NodeState, read_node_state
from deviceplugin.cards import Cards
from deviceplugin.cdi import CdiFolder
from deviceplugin.claims import PodKey
from deviceplugin.exporter import Exporter
from deviceplugin.families import Dialect
from deviceplugin.health import HealthWatch, out_of_service
from deviceplugin.health_events import HealthEvents
from deviceplugin.inventory import CardBoard
from deviceplugin.metrics import CardCollector, DevicePluginMetrics
from deviceplugin.plugin import DevicePlugin, PluginServer
from deviceplugin.podresources import PodResourcesClient
from deviceplugin.registration import PLUGIN_SOCKET, Registration
from deviceplugin.report import NodeReport
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.wiring import Wiring
from fracgpu import names
from fracgpu.units import Mib
from fracgpu.views import PodView, read_pod
from kube.access import connect
from kube.client import KubeClient
from kube.events import EventRecorder
from kube.informer import Change, Informer
from kube.kinds import NODES, PODS
from process.clock import Clock, SystemClock
from process.lifecycle import Running, Service
from process.telemetry import ReadyGate, Registry, TelemetryServer, new_registry

_NAME: Final = "deviceplugin"


def build(settings: DevicePluginSettings, cards: Cards) -> Service:
    """Put the agent together around *cards*."""
    registry, gate, clock = new_registry(), ReadyGate(), SystemClock()

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-deviceplugin") as client:
            try:
                yield _parts(settings, cards, client, clock=clock, gate=gate, registry=registry)
            finally:
                await cards.close()

    return Service(
        name=_NAME,
        open=parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=settings.drain_wait_s,
        drain_limit_s=settings.drain_limit_s,
    )


def _parts(
    settings: DevicePluginSettings,
    cards: Cards,
    client: KubeClient,
    *,
    clock: Clock,
    gate: ReadyGate,
    registry: Registry,
) -> Running:
    node = settings.node_name
    metrics = DevicePluginMetrics(registry)
    health = HealthWatch(hold_s=settings.health_hold_s)
    board = CardBoard(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
        ailments=lambda: health.ailments(now_s=clock.monotonic()),
    )
    pods = Informer(client, PODS, decode=read_pod, field_selector=f"spec.nodeName={node}")
    notes = WiredNotes(client)
    wiring = Wiring(
        node=node,
        board=board,
        pod_resources=PodResourcesClient(
            settings.pod_resources_socket, timeout_s=settings.pod_resources_timeout_s
        ),
        reader=client,
        pods=lambda: _by_key(pods),
        folder=CdiFolder(settings.cdi_dir),
        clock=clock,
        pod_lookup_timeout_s=settings.pod_lookup_timeout_s,
        metrics=metrics,
        on_wired=notes.note,
    )
    plugin = DevicePlugin(board, wiring)
    nodes, report = _node_report(
        client, node, board=board, health=health, clock=clock, metrics=metrics
    )
    server = PluginServer(plugin, settings.device_plugins_dir / PLUGIN_SOCKET)
    registration = Registration(
        folder=settings.device_plugins_dir,
        server=server,
        plugin=plugin,
        blocked=lambda: _blocked(board, nodes.get("", node)),
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
    )
    exporter = Exporter(
        cards=cards,
        board=board,
        attribution=Attribution(settings.proc_root),
        pods=lambda: _values(pods),
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
        on_round=lambda round_: health.observe(round_, now_s=clock.monotonic()),
    )
    health_events = HealthEvents(
        node=node,
        board=board,
        pods=lambda: _values(pods),
        recorder=EventRecorder(client, "fracgpu-deviceplugin", clock, instance=node),
    )
    registry.register(
        CardCollector(
            node=node,
            picture=exporter.picture,
            now_s=lambda: clock.now().timestamp(),
            period_s=settings.collect_period_s,
            dialect=Dialect(settings.metrics_dialect),
        )
    )
    gate.add("cards", lambda: board.problem)
    gate.add("pods", lambda: None if pods.synced else "this node's pods are not listed yet")
    gate.add("node", lambda: report.problem)
    gate.add("kubelet", lambda: registration.problem)

    async def survey() -> None:
        await wiring.clean()
        await board.run()

    return Running(
        tasks={
            "pods": pods.run,
            "node": nodes.run,
            "survey": survey,
            "report": report.run,
            "collect": exporter.run,
            "notes": notes.run,
            "health": health_events.run,
            "register": registration.run,
        },
        servers=(server,),
    )


def _node_report(
    client: KubeClient,
    node: str,
    *,
    board: CardBoard,
    health: HealthWatch,
    clock: Clock,
    metrics: DevicePluginMetrics,
) -> tuple[Informer[NodeState], NodeReport]:
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
    report = NodeReport(
        node=node,
        board=board,
        current=lambda: nodes.get("", node),
        writer=client,
        clock=clock,
        metrics=metrics,
    )
    return nodes, report


def _blocked(board: CardBoard, node: NodeState | None) -> str | None:
    """Say why there is nothing to register with kubelet yet."""
    if node is None:
        return "the node is not known to the API server"
    if node.others:
        return f"the node's cards are counted by another plugin: {node.counted_by}"
    return None if board.slots() else board.problem or "this node has no cards"


def _by_key(pods: Informer[PodView]) -> Mapping[PodKey, PodView] | None:
    if not pods.synced:
        return None
    return {(key.namespace, key.name): pod for key, pod in pods.items().items()}


def _values(pods: Informer[PodView]) -> Iterable[PodView]:
    return pods.items().values()
