"""What keeps claims off this node's cards: its cordons, drained cards, and what Moves hold."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from deviceplugin.node.capacity import NodeState
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.taints import Taints, taints_change_at, taints_of
from fracgpu.state.node_info import closed_by
from fracgpu.state.reservation import MoveClaims, read_claims
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import MOVES
from process.clock import Clock


class CardTaints:
    """Follows the Moves, and says the taints of the node's cards.

    Args:
        node: the node's name.
        client: reads Moves.
        current: the node as it is now; None before it is known.
        tracker: the node's inventory.
        claims: what this node's pods hold; such a claim consumes the reservation of its Move.
        clock: cordons and reservations end.
        on_change: called when a Move has changed.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        client: KubeClient,
        current: Callable[[], NodeState | None],
        tracker: InventoryTracker,
        claims: Callable[[], Iterable[DeviceClaim]],
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._current = current
        self._tracker = tracker
        self._claims = claims
        self._clock = clock
        self._moves: Informer[MoveClaims] = Informer(
            client, MOVES, decode=read_claims, on_change=lambda _: on_change(), optional=True
        )

    async def run(self) -> None:
        """Follow the Moves until cancelled."""
        await self._moves.run()

    def now(self) -> tuple[Taints, datetime | None] | None:
        """Return the taints, and when they change by themselves, if ever; None while not known."""
        current = self._current()
        if current is None or not self._moves.synced:
            return None
        cards = tuple(self._tracker.inventory.cards)
        node = replace(closed_by(self._node, current.annotations), cards=cards)
        moves, now = tuple(self._moves.items().values()), self._clock.now()
        consumed = {claim.move for claim in self._claims()}
        taints = taints_of(node, moves, consumed=consumed, now=now)
        return taints, taints_change_at(node, moves, now=now)
