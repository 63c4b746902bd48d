"""``fracgpu cards``: every card of the cluster, what is held of it and by which pods."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from cli.cluster import (
    NOT_INSTALLED,
    is_installed,
    list_device_claims,
    observe,
    snapshot_of,
    with_cluster,
)
from cli.flags import LISTS, Output, Parser, add_cluster_flags, add_pod_namespace_flags, encode
from cli.fleet import Fleet, fleet_json, fleet_of, only_namespace
from cli.main import DONE, FAILED
from cli.printers.cells import safe
from cli.printers.live import open_console, open_fleet_screen, show_fleet
from fracgpu.device_claims.claim import decode_claim
from fracgpu.device_claims.holders import with_claims
from fracgpu.k8s.pod import LIVE_PODS
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient
from kube.informer import Change, Informer
from kube.kinds import NODES, PODS, RESOURCE_CLAIMS
from process import logs
from process.clock import Clock, SystemClock, wait_at_most

# A cordon lapses without an event, so the cards are also redrawn at this interval.
_FRAME_S: Final = 1.0
_SHORTEST_FRAME_S: Final = 0.2


def main(argv: Sequence[str]) -> int:
    """Show the cards; return 1 if there are none or the API server does not answer."""
    options = arguments().parse_args(argv)
    work = _follow if options.watch else _show
    ended = DONE if options.watch else FAILED  # what is followed ends with Ctrl-C
    return with_cluster("cards", options, lambda client: work(client, options), interrupted=ended)


async def read_fleet(client: KubeClient, clock: Clock, *, node: str | None = None) -> Fleet:
    """List pods and nodes; return their cards."""
    observed = await observe(client)
    pods = {pod.info.record.uid: pod.info for pod in observed.pods}
    nodes = [node.cards for node in observed.nodes]
    return fleet_of(snapshot_of(pods.values(), nodes, now=clock.now()), pods, node=node)


async def watch_fleet(
    client: KubeClient, clock: Clock, show: Callable[[Fleet], None], *, node: str | None = None
) -> None:
    """Call *show* with the cards now and after every change, until cancelled."""
    changed = asyncio.Event()

    def note(_: Change[Any]) -> None:
        changed.set()

    pods = Informer(client, PODS, decode=decode_pod_info, field_selector=LIVE_PODS, on_change=note)
    nodes = Informer(client, NODES, decode=read_node, on_change=note)
    claims = Informer(client, RESOURCE_CLAIMS, decode=decode_claim, on_change=note, optional=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.run(), name="watch-pods")
        group.create_task(nodes.run(), name="watch-nodes")
        for informer in (pods, nodes):
            await informer.wait_synced()
        if await list_device_claims(client, pods.items().values()) is not None:
            group.create_task(claims.run(), name="watch-claims")
            await claims.wait_synced()
        while True:
            changed.clear()
            here = nodes.items().values()
            held = with_claims(pods.items().values(), claims.items().values(), here)
            listed = {pod.record.uid: pod for pod in held}
            snapshot = snapshot_of(listed.values(), here, now=clock.now())
            show(fleet_of(snapshot, listed, node=node))
            await clock.sleep(_SHORTEST_FRAME_S)
            await wait_at_most(clock, changed, limit_s=_FRAME_S)


async def _show(client: KubeClient, options: argparse.Namespace) -> int:
    fleet = _chosen(await read_fleet(client, SystemClock(), node=options.node), options)
    if options.output.structured:
        print(encode(fleet_json(fleet), options.output))
    elif not fleet.nodes:
        where = f"no node {options.node}" if options.node else "no node shares cards"
        print(f"{where}; label one: kubectl label node NAME fracgpu.io/share=true")
        if not await is_installed(client):
            print(f"fracgpu cards: {NOT_INSTALLED}", file=sys.stderr)
    elif options.output is Output.NAME:
        for card in (card for node in fleet.nodes for card in node.cards):
            print(f"card/{safe(card.uuid)}")
    else:
        show_fleet(open_console(), fleet, wide=_wide(options))
    return DONE if fleet.nodes else FAILED


def _wide(options: argparse.Namespace) -> bool:
    return options.output is Output.WIDE or bool(options.pods)


def _chosen(fleet: Fleet, options: argparse.Namespace) -> Fleet:
    return fleet if options.namespace is None else only_namespace(fleet, options.namespace)


async def _follow(client: KubeClient, options: argparse.Namespace) -> int:
    logs.configure(level="error", json=False)
    if options.output.structured:

        def write(fleet: Fleet) -> None:
            body = fleet_json(_chosen(fleet, options))
            print(encode(body, options.output, stream=True), flush=True)

        await watch_fleet(client, SystemClock(), write, node=options.node)
        return DONE
    with open_fleet_screen(open_console(), wide=_wide(options)) as show:
        await watch_fleet(
            client,
            SystemClock(),
            lambda fleet: show(_chosen(fleet, options)),
            node=options.node,
        )
    return DONE


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu cards",
        description="The cluster's cards: MiB and compute held, by whom, health and cordons.",
    )
    parser.add_argument("--node", help="only this node")
    parser.add_argument("--pods", action="store_true", help="every pod on a line; same as -o wide")
    parser.add_argument("--watch", "-w", action="store_true", help="follow changes until Ctrl-C")
    add_pod_namespace_flags(parser)
    add_cluster_flags(parser, formats=LISTS)
    return parser
