"""The node agent of a node without kubelet: its own publisher of slices and taints, no more."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from deviceplugin.dra.card_taints import CardTaints
from deviceplugin.dra.slices import SlicePublisher, watch_slices
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import read_node_state
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import Card
from fracgpu.device_claims.claim import decode_claim
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import NODES, RESOURCE_CLAIMS
from process.clock import SystemClock
from simulator.background import background
from tests.deviceplugin.builders import FakeCards


@asynccontextmanager
async def claims_agent(
    client: KubeClient, node: str, cards: Sequence[Card], *, slots: int = 32
) -> AsyncIterator[None]:
    """Publish the cards of a node, with the taints that keep claims off them."""
    clock = SystemClock()
    tracker = InventoryTracker(
        FakeCards(*cards), clock, period_s=10.0, slots_per_card=slots, headroom_mib=Mib(0)
    )

    def changed() -> None:
        publisher.wake()

    nodes = Informer(
        client,
        NODES,
        decode=read_node_state,
        field_selector=f"metadata.name={node}",
        on_change=lambda _: changed(),
    )
    claims = Informer(client, RESOURCE_CLAIMS, decode=decode_claim, on_change=lambda _: changed())
    taints = CardTaints(
        node=node,
        client=client,
        current=lambda: nodes.get("", node),
        tracker=tracker,
        claims=lambda: (claim for claim in claims.items().values() if claim.node == node),
        clock=clock,
        on_change=changed,
    )
    slices = watch_slices(client, node, on_change=changed)
    publisher = SlicePublisher(
        node=node,
        client=client,
        slices=lambda: tuple(slices.items().values()) if slices.synced else None,
        tracker=tracker,
        withheld=lambda: None,
        unsure=lambda: None,
        taints=taints.now,
        isolation=tuple,
        card_class=str,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
    )
    await tracker.refresh()
    async with background(
        *(run() for run in (nodes.run, claims.run, taints.run, slices.run, publisher.run))
    ):
        yield
