"""What a Move keeps for the waiting pod that it makes room for: cards that take no other slice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.move_object import RESERVING, Move, MovePhase

# The pod on the source stays, so there will be no room.
_NO_ROOM: Final = (MovePhase.RECOMMENDED, MovePhase.ROLLING_BACK, MovePhase.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHold:
    """Cards of one node that take no new slice but those of one waiting pod.

    It ends when the pod is placed, wherever that is: nobody needs it any more. So that it does not
    begin again when that pod ends, and for a pod that is deleted while it waits, the rebalancer
    writes into the Move that it is over.

    Attributes:
        move: the name of the Move.
        pod_uid: the waiting pod's.
        until: when the hold lapses.
        host: what is kept of the node's CPU and memory.
    """

    move: str
    pod_uid: str
    node: str
    cards: frozenset[CardUuid]
    until: datetime
    host: HostResources = NO_HOST_RESOURCES


def hold_of(move: Move) -> CardHold | None:
    """Return what a Move keeps for its beneficiary; None without one, or if no room comes of it.

    While the target is reserved the move is under way, and the hold lasts at least as long, unless
    it was ended.
    """
    beneficiary = move.spec.beneficiary
    phase = move.status.phase
    if beneficiary is None or phase in _NO_ROOM:
        return None
    until = move.status.held_until or beneficiary.held_until
    if phase in RESERVING and move.status.held_until is None:
        until = max(until, move.reserved_until)
    return CardHold(
        move=move.name,
        pod_uid=beneficiary.uid,
        node=move.spec.source.node,
        cards=frozenset(beneficiary.cards),
        until=until,
        host=HostResources(cpu_milli=beneficiary.cpu_milli, memory_mib=beneficiary.memory_mib),
    )


def held_cards(
    holds: Iterable[CardHold],
    *,
    for_pod: str = "",
    placed: Iterable[str] = (),
    now: datetime,
) -> Mapping[CardUuid, CardHold]:
    """Return the cards that are closed to a pod, each with a hold that closes it.

    Args:
        holds: of every Move.
        for_pod: the UID of the pod that asks; its own holds close nothing to it.
        placed: UIDs of pods that are bound, or assumed to be: holds for them have ended.
        now: the moment.
    """
    ended = frozenset(placed)
    return {
        card: hold
        for hold in holds
        if hold.until > now and hold.pod_uid != for_pod and hold.pod_uid not in ended
        for card in sorted(hold.cards)
    }
