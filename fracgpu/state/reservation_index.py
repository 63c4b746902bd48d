"""The claims of all Moves, and which pods have consumed a reservation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.state.card_hold import CardHold
from fracgpu.state.reservation import MoveClaims, Reservation

# A controller's pods are kept off so many cards at most: each costs a search of its node.
_MAX_DENIED_CARDS: Final = 32


class ReservationState(Enum):
    """What has become of a reservation."""

    HELD = "held"  # it counts as used
    CONSUMED = "consumed"  # a pod carries the Move's name, and counts instead
    LAPSED = "lapsed"  # its time is over, but the Move has not come further
    UNREADABLE = "unreadable"  # the Move cannot be read, and its whole target counts as used


class ReservationIndex:
    """Claims by Move, node and controller.

    A reservation is consumed while any pod, observed or assumed, carries the name of its Move. If
    all such pods go, it counts again. Methods that change something return the nodes on which
    something else may be free now.
    """

    def __init__(self) -> None:
        self._claims: dict[str, MoveClaims] = {}
        self._on_node: dict[str, set[str]] = {}
        self._of_owner: dict[str, set[str]] = {}
        self._denied_to: dict[str, set[str]] = {}
        self._holds_on: dict[str, set[str]] = {}
        self._holds_for: dict[str, set[str]] = {}
        self._consumers: dict[str, dict[str, datetime | None]] = {}

    def put(self, claims: MoveClaims) -> frozenset[str]:
        """Add or replace what a Move claims."""
        if self._claims.get(claims.move) == claims:
            return frozenset()
        before = self.remove(claims.move)
        self._claims[claims.move] = claims
        reservation, denial, hold = claims.reservation, claims.denial, claims.hold
        if hold is not None:
            self._holds_on.setdefault(hold.node, set()).add(claims.move)
            self._holds_for.setdefault(hold.pod_uid, set()).add(claims.move)
        if reservation is not None:
            self._on_node.setdefault(reservation.node, set()).add(claims.move)
            if reservation.owner_uid:
                self._of_owner.setdefault(reservation.owner_uid, set()).add(claims.move)
        if denial is not None and denial.owner_uid:
            self._denied_to.setdefault(denial.owner_uid, set()).add(claims.move)
        return before | _nodes_of(claims)

    def remove(self, move: str) -> frozenset[str]:
        """Drop what a Move claims; an unknown one changes nothing."""
        claims = self._claims.pop(move, None)
        if claims is None:
            return frozenset()
        reservation, denial, hold = claims.reservation, claims.denial, claims.hold
        if denial is not None and denial.owner_uid:
            discard(self._denied_to, denial.owner_uid, move)
        if hold is not None:
            discard(self._holds_on, hold.node, move)
            discard(self._holds_for, hold.pod_uid, move)
        if reservation is not None:
            if reservation.owner_uid:
                discard(self._of_owner, reservation.owner_uid, move)
            discard(self._on_node, reservation.node, move)
        return _nodes_of(claims)

    def consume(self, move: str, *, pod_uid: str, until: datetime | None = None) -> frozenset[str]:
        """Record that a pod carries the name of a Move, which may not be known yet.

        Args:
            move: the name of the Move.
            pod_uid: the pod.
            until: when this lapses, if the pod is only assumed.
        """
        self._consumers.setdefault(move, {})[pod_uid] = until
        return self._target_of(move)

    def release(self, move: str, *, pod_uid: str) -> frozenset[str]:
        """Record that a pod that carried the name of a Move is gone."""
        consumers = self._consumers.get(move, {})
        consumers.pop(pod_uid, None)
        if not consumers:
            self._consumers.pop(move, None)
        return self._target_of(move)

    def on_node(self, node: str, *, now: datetime) -> Sequence[Reservation]:
        """Return the reservations on a node that count now."""
        return [
            reservation
            for move in sorted(self._on_node.get(node, ()))
            if (reservation := self._claims[move].reservation) is not None
            and reservation.until > now
            and not self._consumed(move, now=now)
        ]

    def changes_on(self, node: str) -> Sequence[datetime]:
        """Return the times at which the answer of :meth:`on_node` may change by itself."""
        found: list[datetime] = []
        for move in self._on_node.get(node, ()):
            reservation = self._claims[move].reservation
            found += () if reservation is None else (reservation.until,)
            found += (until for until in self._consumers.get(move, {}).values() if until)
        found += (hold.until for hold in self.holds_on(node))
        return found

    def holds_on(self, node: str) -> Sequence[CardHold]:
        """Return what Moves keep on a node for waiting pods, lapsed or not."""
        return self._holds_of(self._holds_on.get(node, ()))

    def nodes(self) -> frozenset[str]:
        """Return the nodes on which Moves reserve or keep something, lapsed or not."""
        return frozenset((*self._on_node, *self._holds_on))

    def nodes_with_holds(self) -> Sequence[str]:
        """Return the nodes on which Moves keep something for waiting pods, lapsed or not."""
        return sorted(self._holds_on)

    def holds_for(self, pod_uid: str) -> Sequence[CardHold]:
        """Return what Moves keep for a waiting pod, lapsed or not."""
        moves = self._holds_for.get(pod_uid)
        return self._holds_of(moves) if moves else ()  # nearly every pod has none

    def _holds_of(self, moves: Iterable[str]) -> Sequence[CardHold]:
        found = (self._claims[move].hold for move in sorted(moves))
        return [hold for hold in found if hold is not None]

    def for_pod(self, owner_uid: str, pod_uid: str, *, now: datetime) -> Sequence[Reservation]:
        """Return what a pod of a controller may consume now, the first to lapse first.

        What the pod itself has consumed by an earlier Binding is among them.
        """
        found = [
            reservation
            for move in self._of_owner.get(owner_uid, ())
            if not self._consumed(move, now=now, but_by=pod_uid)
            and (reservation := self._claims[move].reservation) is not None
            and reservation.until > now
            and reservation.pod_uid != pod_uid
        ]
        return sorted(found, key=lambda one: (one.until, one.move))

    def denied(self, owner_uid: str, *, now: datetime) -> Mapping[CardUuid, str]:
        """Return the cards that the pods of a controller are kept off now, and their nodes.

        Of very many cards, those that are denied for longest.
        """
        denials = [
            denial
            for move in self._denied_to.get(owner_uid, ())
            if (denial := self._claims[move].denial) is not None and denial.until > now
        ]
        denials.sort(key=lambda one: (one.until, one.move), reverse=True)
        return {one.card: one.node for one in denials[:_MAX_DENIED_CARDS]}

    @property
    def claims(self) -> Mapping[str, MoveClaims]:
        """What each Move claims, by its name, read only."""
        return MappingProxyType(self._claims)

    def states(self, *, now: datetime) -> Mapping[ReservationState, int]:
        """Return the number of reservations in each state."""
        counted = Counter(
            self._state(claims, claims.reservation, now=now)
            for claims in self._claims.values()
            if claims.reservation is not None
        )
        return {state: counted[state] for state in ReservationState}

    def _state(
        self, claims: MoveClaims, reservation: Reservation, *, now: datetime
    ) -> ReservationState:
        if self._consumed(claims.move, now=now):
            return ReservationState.CONSUMED
        if reservation.until <= now:
            return ReservationState.LAPSED
        return ReservationState.UNREADABLE if claims.problem else ReservationState.HELD

    def _consumed(self, move: str, *, now: datetime, but_by: str = "") -> bool:
        return any(
            uid != but_by and (until is None or until > now)
            for uid, until in self._consumers.get(move, {}).items()
        )

    def _target_of(self, move: str) -> frozenset[str]:
        claims = self._claims.get(move)
        if claims is None or claims.reservation is None:
            return frozenset()
        return frozenset((claims.reservation.node,))


def _nodes_of(claims: MoveClaims) -> frozenset[str]:
    parts = (claims.reservation, claims.hold)
    return frozenset(part.node for part in parts if part is not None)


def discard(groups: dict[str, set[str]], key: str, item: str) -> None:
    """Remove an item from the group of a key, and the group when it is empty.

    Raises:
        KeyError: there is no such group.
    """
    group = groups[key]
    group.discard(item)
    if not group:
        del groups[key]
