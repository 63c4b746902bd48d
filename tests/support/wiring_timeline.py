"""What a node offers by each wiring, in the order in which the API server stored it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fracgpu import names
from fracgpu.k8s.quantity import integer_amount
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, RESOURCE_SLICES
from kube.objects import decode_object
from simulator.background import background
from tests.support.objects import Json


@dataclass(slots=True)
class WiringTimeline:
    """Versions at which the node began and ceased to offer something by a wiring."""

    node: str
    changes: list[tuple[int, str, bool]] = field(default_factory=list)

    def node_changed(self, change: Change[Json]) -> None:
        amount = change.object["status"].get("capacity", {}).get(names.GPU_MEM, "0")
        self._note(change, "devicePlugin", bool(integer_amount(str(amount))))

    def slice_changed(self, change: Change[Json]) -> None:
        gone = change.type is ChangeType.DELETED
        offered = not gone and bool(change.object["spec"].get("devices"))
        self._note(change, "claims", offered)

    def _note(self, change: Change[Json], wiring: str, offered: bool) -> None:
        self.changes.append((int(change.resource_version), wiring, offered))

    @property
    def states(self) -> list[tuple[str, ...]]:
        """What was offered at once, from first to last."""
        offered: set[str] = set()
        found: list[tuple[str, ...]] = []
        for _, wiring, begins in sorted(self.changes):
            (offered.add if begins else offered.discard)(wiring)
            state = tuple(sorted(offered))
            if not found or found[-1] != state:
                found.append(state)
        return found


@asynccontextmanager
async def wiring_timeline(client: KubeClient, node: str) -> AsyncIterator[WiringTimeline]:
    """Follow what a node offers, while the block runs."""
    timeline = WiringTimeline(node)
    nodes = Informer(
        client,
        NODES,
        decode=decode_object,
        field_selector=f"metadata.name={node}",
        on_change=timeline.node_changed,
    )
    slices = Informer(
        client,
        RESOURCE_SLICES,
        decode=decode_object,
        field_selector=f"spec.nodeName={node}",
        on_change=timeline.slice_changed,
    )
    async with background(*(each.run() for each in (nodes, slices))):
        await nodes.wait_synced()
        await slices.wait_synced()
        yield timeline
