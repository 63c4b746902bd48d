"""What a Move keeps on cards: its target for the replacement, and its source from the owner."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from fracgpu.cards.card import FULL_CORES, CardUuid
from fracgpu.errors import WireError, decode_wire
from fracgpu.state.allocation import WHOLE_CARD, CardAllocation
from fracgpu.state.card_hold import CardHold, hold_of
from fracgpu.state.move_object import KIND, RESERVING, Move, MovePhase, decode_move
from fracgpu.units import MAX_MIB, Mib

_MAX_SLOTS: Final = 1024  # containers of one pod; far more than a card can have slots
NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A share of a card that is held for the next pod of one controller.

    It counts as used for everybody else. The first pod of the controller that requests the same and
    is bound with the name of the move consumes it.

    Attributes:
        move: the name of the Move.
        owner_uid: the controller's; empty if the Move cannot be read, and then no pod consumes it.
        pod_uid: the pod that is moved; it never consumes its own reservation.
        pod: that pod as ``namespace/name``, for people.
        until: when the reservation lapses.
    """

    move: str
    owner_uid: str
    pod_uid: str
    pod: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveClaims:
    """What one Move keeps, all in all.

    Attributes:
        move: the name of the Move.
        problem: why the Move cannot be read; else empty.
    """

    move: str
    reservation: Reservation | None = None
    denial: SourceDenial | None = None
    hold: CardHold | None = None
    problem: str = ""


def reservation_of(move: Move) -> Reservation | None:
    """Return what a Move reserves; None if its phase reserves nothing (any more).

    An amount that no card has counts as the whole card.
    """
    if move.status.phase not in RESERVING:
        return None
    spec = move.spec
    return Reservation(
        move=move.name,
        owner_uid=spec.owner.uid,
        pod_uid=spec.pod.uid,
        pod=spec.pod.key,
        node=spec.target.node,
        card=spec.target.card,
        allocation=WHOLE_CARD
        if _amount_problem(move)
        else CardAllocation(
            mib=spec.request.mib,
            cores=spec.request.cores,
            slots=spec.request.slots,
            borrow_mib=Mib(max(spec.request.limit_mib - spec.request.mib, 0)),
        ),
        until=move.reserved_until,
    )


def source_denial_of(move: Move) -> SourceDenial | None:
    """Return which card a Move keeps its owner off; None if it was only recommended or aborted."""
    if move.status.phase in (MovePhase.RECOMMENDED, MovePhase.ABORTED):
        return None
    spec = move.spec
    return SourceDenial(
        move=move.name,
        owner_uid=spec.owner.uid,
        node=spec.source.node,
        card=spec.source.card,
        until=spec.source_denied_until,
    )


def claims_of(move: Move) -> MoveClaims:
    """Return what a Move keeps."""
    return MoveClaims(
        move=move.name,
        reservation=reservation_of(move),
        denial=source_denial_of(move),
        hold=hold_of(move),
        problem=_amount_problem(move),
    )


def read_claims(body: bytes) -> MoveClaims:
    """Return what the Move keeps that *body* holds.

    A Move that cannot be read, such as one of a later version, keeps its whole target for as long
    as it may be under way: unknown is never free. If it does not name a target, it keeps nothing.

    Raises:
        WireError: *body* is no object with a name.
    """
    try:
        return claims_of(decode_move(body))
    except WireError as error:
        return _unreadable(body, str(error))


def _unreadable(body: bytes, problem: str) -> MoveClaims:
    found: object = decode_wire(msgspec.json.decode, body, what=KIND)
    name = _text(found, "metadata", "name")
    if not name:
        raise WireError(what=KIND, message="no metadata.name")
    claims = MoveClaims(move=name, problem=problem)
    phase = _text(found, "status", "phase")
    if phase in _PHASES and MovePhase(phase) not in RESERVING:
        return claims
    node, card = _text(found, "spec", "target", "node"), _text(found, "spec", "target", "card")
    if not (node and card):
        return claims
    until = _text(found, "status", "reservedUntil") or _text(found, "spec", "reservedUntil")
    reservation = Reservation(
        move=name,
        owner_uid="",
        pod_uid="",
        node=node,
        card=CardUuid(card),
        allocation=WHOLE_CARD,
        until=_time(until),
    )
    return replace(claims, reservation=reservation)


_PHASES: Final = frozenset(phase.value for phase in MovePhase)


def _text(found: Any, *path: str) -> str:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return NEVER
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _amount_problem(move: Move) -> str:
    request = move.spec.request
    for field, value, most in (
        ("mib", request.mib, MAX_MIB),
        ("cores", request.cores, FULL_CORES),
        ("slots", request.slots, _MAX_SLOTS),
        ("limitMib", request.limit_mib, MAX_MIB),
    ):
        if not 0 <= value <= most:
            return f"spec.request.{field} is {value}; want 0 to {most}"
    return ""
