"""The books folded from scratch now and then, and compared: they never differ, and we can show it.

The books are kept up incrementally, and a mistake in that would book a MiB twice or leak one
without anybody noticing. So every node is folded anew from what the API server last said and from
what is assumed; the number of nodes that differ is a metric, and each one is an error in the log.
So is each card of which pods were promised more than it shares, whoever bound them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from fracgpu.cards.card import NodeCards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeInfo, PodAllocation, build_node_info
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod

log = structlog.get_logger()

_NODES_AT_ONCE: Final = 50  # some milliseconds; then kube-scheduler's requests come first


class CacheComparer:
    """Compares the ledger and the board with a fold of the informers' copies.

    Args:
        ledger: the books.
        matrix: what requests are answered from.
        nodes: gives the nodes as the API server last showed them.
        pods: gives the pods likewise.
        clock: tells which cordons and assumptions hold.
        on_drift: told after each audit how many nodes differ.
        on_overbooked: told after each audit of how many cards more was promised than they share.
        every_s: pause between two audits.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        ledger: Ledger,
        matrix: NodeMatrix,
        *,
        nodes: Callable[[], Iterable[NodeCards]],
        pods: Callable[[], Iterable[AnyPod]],
        clock: Clock,
        on_drift: Callable[[int], None],
        on_overbooked: Callable[[int], None] = lambda _: None,
        every_s: float,
    ) -> None:
        self._ledger = ledger
        self._matrix = matrix
        self._nodes = nodes
        self._pods = pods
        self._clock = clock
        self._on_drift = on_drift
        self._on_overbooked = on_overbooked
        self._every_s = every_s

    async def run(self) -> None:
        """Audit for ever."""
        while True:
            await self._clock.sleep(self._every_s)
            await self.once()

    async def once(self) -> tuple[str, ...]:
        """Audit now; name the nodes that differ."""
        self._matrix.refresh(now=self._clock.now())
        moment = self._matrix.now
        nodes = {node.node: node for node in self._nodes()}
        holds = _by_node(self._pods())
        names = sorted({*nodes, *self._ledger.nodes, *self._matrix.rows})
        differ: list[str] = []
        overbooked = 0
        for at, name in enumerate(names):
            if at % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                await self._clock.sleep(0)
                self._matrix.refresh(now=self._clock.now())
            if self._is_untouched(name, moment) and not self._agrees(name, nodes.get(name), holds):
                differ.append(name)
                log.error("ledger_drifted", node=name)
            overbooked += self._overbooked(name)
        self._on_drift(len(differ))
        self._on_overbooked(overbooked)
        return tuple(differ)

    def _overbooked(self, name: str) -> int:
        """Count the cards of a node of which more was promised than they share, and name them."""
        node_info = self._ledger.node(name, now=self._clock.now())
        over = (
            [it for it in node_info.cards.values() if it.held_mib > it.card.capacity_mib]
            if node_info
            else []
        )
        for it in over:
            log.error(
                "card_overbooked",
                node=name,
                card=it.card.uuid,
                held_mib=it.held_mib,
                capacity_mib=it.card.capacity_mib,
                pods=sorted(it.pods),
            )
        return len(over)

    def _is_untouched(self, name: str, moment: int) -> bool:
        """Tell whether a node is as it was when this audit began; else the next one looks at it."""
        row = self._matrix.rows.get(name)
        return row is None or bool(self._matrix.changed[row] <= moment)

    def _agrees(
        self, name: str, node: NodeCards | None, holds: Mapping[str, list[PodAllocation]]
    ) -> bool:
        now = self._clock.now()
        booked = self._ledger.node(name, now=now)
        row = self._matrix.rows.get(name)
        shown = None if row is None else self._matrix.infos[row]
        if node is None:
            return booked is None and shown is None
        here = list(holds.get(name, ()))
        for uid, it in self._ledger.assumed.items():
            if it.allocation.node == name and it.until > now:
                here.append(PodAllocation(pod_uid=uid, node=name, by_card=it.allocation.by_card))
        heat = node.known_heat(now=now)
        folded = build_node_info(node, here, cordoned=node.cordoned(now=now), heat=heat)
        return booked == folded and shown == folded and self._shows(row, folded)

    def _shows(self, row: int | None, folded: NodeInfo) -> bool:
        free = [card_info.free_mib for card_info in folded.cards.values()]
        return row is not None and self._matrix.free_mib[row, : len(free)].tolist() == free


def _by_node(pods: Iterable[AnyPod]) -> Mapping[str, list[PodAllocation]]:
    found: dict[str, list[PodAllocation]] = {}
    for pod in pods:
        if isinstance(pod, BoundPod) and pod.holds.holds_anything:
            found.setdefault(pod.node, []).append(pod.holds)
    return found
