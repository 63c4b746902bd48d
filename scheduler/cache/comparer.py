"""Rebuilds the cache from scratch periodically and compares, to show that the two never differ.

The ledger and the node matrix are updated incrementally, where a mistake could count a MiB twice or
leak one unnoticed. So every node is rebuilt from the informers' objects and the assumptions. The
number of nodes that differ is a metric, and each one is an error in the log. So is each
overcommitted card, whoever bound its pods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

import structlog

from fracgpu.cards.card import NodeCards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.card_hold import CardHold, held_cards
from fracgpu.state.ledger import Ledger
from fracgpu.state.reservation import MoveClaims, Reservation
from fracgpu.state.snapshot import NodeInfo, PodAllocation, build_node_info
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod

log = structlog.get_logger()

_PODS_AT_ONCE: Final = 500  # takes a millisecond, or four where claims hold their cards
_NODES_AT_ONCE: Final = 50  # takes some milliseconds, then kube-scheduler's requests are served


class _Observed(NamedTuple):
    """What the informers' pods and Moves say at the beginning of a comparison, by node."""

    held: Mapping[str, Sequence[PodAllocation]]
    reserved: Mapping[str, Sequence[Reservation]]
    kept: Mapping[str, Sequence[CardHold]]
    placed: Set[str]  # the pods that cards are kept for and that have some


class CacheComparer:
    """Compares the ledger and the node matrix with the informers' objects.

    Args:
        ledger: who holds what.
        matrix: the node matrix that requests are answered from.
        nodes: returns the informer's nodes.
        pods: returns the informer's pods; they are read in steps, while others change.
        moves: returns what the informer's Moves claim.
        clock: the time at which cordons and assumptions are evaluated.
        on_drift: called after each comparison with the number of nodes that differ.
        on_overcommitted: called after each comparison with the number of overcommitted cards.
        every_s: pause between two comparisons.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        ledger: Ledger,
        matrix: NodeMatrix,
        *,
        nodes: Callable[[], Iterable[NodeCards]],
        pods: Callable[[], Iterable[AnyPod]],
        moves: Callable[[], Iterable[MoveClaims]] = tuple,
        clock: Clock,
        on_drift: Callable[[int], None],
        on_overcommitted: Callable[[int], None] = lambda _: None,
        every_s: float,
    ) -> None:
        self._ledger = ledger
        self._matrix = matrix
        self._nodes = nodes
        self._pods = pods
        self._moves = moves
        self._clock = clock
        self._on_drift = on_drift
        self._on_overcommitted = on_overcommitted
        self._every_s = every_s

    async def run(self) -> None:
        """Compare periodically until cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            await self.once()

    async def once(self) -> tuple[str, ...]:
        """Compare now; return the names of the nodes that differ."""
        await self._refresh()
        moment = self._matrix.now
        known = set(self._matrix.rows)
        observed = await self._observe()
        nodes = {node.node: node for node in self._nodes()}
        await self._refresh()
        known.update(self._matrix.rows)
        names = sorted({*nodes, *self._ledger.nodes, *self._matrix.rows})
        differ: list[str] = []
        overcommitted = 0
        for at, name in enumerate(names):
            if at % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                await self._clock.sleep(0)
                await self._refresh()
            untouched = self._is_untouched(name, moment, known)
            if untouched and not self._agrees(name, nodes.get(name), observed):
                differ.append(name)
                log.error("ledger_drifted", node=name)
            overcommitted += self._overcommitted(name)
        self._on_drift(len(differ))
        self._on_overcommitted(overcommitted)
        return tuple(differ)

    async def _refresh(self) -> None:
        for _ in self._matrix.refreshing(self._clock.now):
            await self._clock.sleep(0)

    def _overcommitted(self, name: str) -> int:
        """Log the overcommitted cards of a node, and return their number."""
        node_info = self._ledger.node(name, now=self._clock.now())
        for one in self._ledger.assumed_on(name, but=""):
            if node_info is not None and one.by_claim:
                node_info = node_info.without_allocations(
                    one.allocation.by_card, pod_uid=one.allocation.pod_uid
                )
        over = (
            [
                card
                for card in node_info.cards.values()
                if card.held_mib - card.reserved_mib > card.card.capacity_mib
            ]
            if node_info
            else []
        )
        for card in over:
            log.error(
                "card_overbooked",
                node=name,
                card=card.card.uuid,
                held_mib=card.held_mib - card.reserved_mib,
                capacity_mib=card.card.capacity_mib,
                pods=sorted(card.pods),
            )
        return len(over)

    def _is_untouched(self, name: str, moment: int, known: Set[str]) -> bool:
        """Report whether a node is unchanged since this comparison began; if not, skip it.

        Args:
            name: of the node.
            moment: the matrix's time at the beginning.
            known: the nodes that have been in the matrix since then.
        """
        if not self._ledger.pods_on(name).isdisjoint(self._ledger.growing):
            return False  # counted before the API server shows it
        row = self._matrix.rows.get(name)
        if row is None:  # not of this cache, unless it was deleted meanwhile
            return name not in known
        return bool(self._matrix.changed[row] <= moment)

    async def _observe(self) -> _Observed:
        kept: dict[str, list[CardHold]] = {}
        for claims in self._moves():
            if claims.hold is not None:
                kept.setdefault(claims.hold.node, []).append(claims.hold)
        awaited = {hold.pod_uid for holds in kept.values() for hold in holds}
        held: dict[str, list[PodAllocation]] = {}
        placed, consumed = set(), set()
        # A pod that changes meanwhile changes its node, which is then skipped.
        for at, pod in enumerate(self._pods()):
            if at % _PODS_AT_ONCE == _PODS_AT_ONCE - 1:
                await self._clock.sleep(0)
            if isinstance(pod, BoundPod):
                if pod.allocation.holds_anything:
                    held.setdefault(pod.node, []).append(pod.allocation)
                    placed.update(awaited & {pod.uid})
                if pod.live:
                    consumed.add(pod.allocation.move)
        return _Observed(held, self._reserved(consumed), kept, placed)

    def _reserved(self, consumed: Set[str]) -> Mapping[str, Sequence[Reservation]]:
        """Return the reservations by node of which the Move is not among the *consumed*."""
        found: dict[str, list[Reservation]] = {}
        for claims in self._moves():
            if claims.reservation is not None and claims.move not in consumed:
                found.setdefault(claims.reservation.node, []).append(claims.reservation)
        return found

    def _agrees(self, name: str, node: NodeCards | None, observed: _Observed) -> bool:
        now = self._clock.now()
        cached = self._ledger.node(name, now=now)
        row = self._matrix.rows.get(name)
        shown = None if row is None else self._matrix.infos[row]
        if node is None:
            return cached is None and shown is None
        assumed = {uid: one for uid, one in self._ledger.assumed.items() if one.until > now}
        here = [one.allocation for one in assumed.values() if one.allocation.node == name]
        assumed_moves = {one.move for one in assumed.values()}
        folded = build_node_info(
            node,
            [*observed.held.get(name, ()), *here],
            cordons=node.effects(now=now),
            heat=node.known_heat(now=now),
            reservations=[
                one
                for one in observed.reserved.get(name, ())
                if one.until > now and one.move not in assumed_moves
            ],
            kept=held_cards(
                observed.kept.get(name, ()), placed=[*observed.placed, *assumed], now=now
            ),
        )
        return cached == folded and shown == folded and self._shows(row, folded)

    def _shows(self, row: int | None, folded: NodeInfo) -> bool:
        free = [card_info.free_mib for card_info in folded.cards.values()]
        return row is not None and self._matrix.free_mib[row, : len(free)].tolist() == free
