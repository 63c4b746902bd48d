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
from deviceplugin.inventory import CardBoard
from deviceplugin.metrics import CardCollector, DevicePluginMetrics
from deviceplugin.plugin import DevicePlugin, PluginServer
from deviceplugin.podresources import PodResourcesClient
from deviceplugin.registration import PLUGIN_SOCKET, Registration
from deviceplugin.report import NodeReport
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.wiring import Wiring
from fracgpu.units import Mib
from fracgpu.views import PodView, read_pod
from kube.access import connect
from kube.client import KubeClient
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
    board = CardBoard(
        cards,
        clock,
        period_s=settings.survey_period_s,
        slots_per_card=settings.slots_per_card,
        headroom_mib=Mib(settings.headroom_mib),
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
    server = PluginServer(plugin, settings.device_plugins_dir / PLUGIN_SOCKET)
    registration = Registration(
        folder=settings.device_plugins_dir,
        server=server,
        plugin=plugin,
        blocked=lambda: None if board.slots() else board.problem or "this node has no cards",
        clock=clock,
        poll_s=settings.kubelet_poll_s,
        metrics=metrics,
    )
    nodes, report = _node_report(client, node, board=board, clock=clock, metrics=metrics)
    exporter = Exporter(
        cards=cards,
        board=board,
        attribution=Attribution(settings.proc_root),
        pods=lambda: _values(pods),
        clock=clock,
        period_s=settings.collect_period_s,
        metrics=metrics,
    )
    registry.register(
        CardCollector(
            node=node,
            picture=exporter.picture,
            now_s=lambda: clock.now().timestamp(),
            period_s=settings.collect_period_s,
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
            "register": registration.run,
        },
        servers=(server,),
    )


def _node_report(
    client: KubeClient,
    node: str,
    *,
    board: CardBoard,
    clock: Clock,
    metrics: DevicePluginMetrics,
) -> tuple[Informer[NodeState], NodeReport]:
    def changed(_: Change[NodeState]) -> None:
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


def _by_key(pods: Informer[PodView]) -> Mapping[PodKey, PodView] | None:
    if not pods.synced:
        return None
    return {(key.namespace, key.name): pod for key, pod in pods.items().items()}


def _values(pods: Informer[PodView]) -> Iterable[PodView]:
    return pods.items().values()
