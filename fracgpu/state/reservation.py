"""What a Move keeps on cards: its target for the replacement, and its source from the owner."""

from dataclasses import dataclass
from datetime import datetime

from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.move_object import RESERVING, MoveObject, MovePhase
from fracgpu.units import Mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A share of a card that is held for the next pod of one controller.

    It counts as used for everybody else. The first pod of the controller that requests the same and
    is bound with the name of the move consumes it.

    Attributes:
        move: the name of the Move.
        owner_uid: the controller's.
        pod_uid: the pod that is moved; it never consumes its own reservation.
        until: when the reservation lapses.
    """

    move: str
    owner_uid: str
    pod_uid: str
    node: str
    card: CardUuid
    allocation: CardAllocation
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDenial:
    """A card that a controller's pods are kept off until a given time, so that none returns."""

    move: str
    owner_uid: str
    node: str
    card: CardUuid
    until: datetime


def reservation_of(move: MoveObject) -> Reservation | None:
    """Return what a Move reserves; None if its phase reserves nothing (any more)."""
    if move.status.phase not in RESERVING:
        return None
    spec = move.spec
    return Reservation(
        move=move.name,
        owner_uid=spec.owner.uid,
        pod_uid=spec.pod.uid,
        node=spec.target.node,
        card=CardUuid(spec.target.card),
        allocation=CardAllocation(
            mib=Mib(spec.request.mib), cores=spec.request.cores, slots=spec.request.slots
        ),
        until=move.reserved_until,
    )


def source_denial_of(move: MoveObject) -> SourceDenial | None:
    """Return which card a Move keeps its owner off; None if it was only recommended or aborted."""
    if move.status.phase in (MovePhase.RECOMMENDED, MovePhase.ABORTED):
        return None
    spec = move.spec
    return SourceDenial(
        move=move.name,
        owner_uid=spec.owner.uid,
        node=spec.source.node,
        card=CardUuid(spec.source.card),
        until=spec.source_denied_until,
    )
