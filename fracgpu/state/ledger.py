"""Who holds what: a fold over observed pods, nodes and Moves and over assumptions of our own."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.allocation import Assignment, CardAllocation, PodRecord, allocations_by_card
from fracgpu.state.card_hold import CardHold, held_cards
from fracgpu.state.reservation import MoveClaims, Reservation
from fracgpu.state.snapshot import NodeInfo, PodAllocation, Snapshot, allocation_of, build_node_info
from fracgpu.units import Mib

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A placement whose Binding is under way; it lapses unless an observation confirms it.

    Attributes:
        move: the name of the Move whose reservation it consumes; empty if it consumes none.
        nominated: its Binding is not written yet; kube-scheduler has nominated the pod to the node.
        gang: its Binding is not written yet; room is held for the gang of the pod.
        by_claim: kube-scheduler has not allocated it yet, and will not before it is free.
        host: what it takes of the node besides cards.
    """

    allocation: PodAllocation
    until: datetime
    move: str = ""
    nominated: bool = False
    gang: bool = False
    by_claim: bool = False
    host: HostResources = NO_HOST_RESOURCES


class _FoldedNode(msgspec.Struct, frozen=True, gc=False):
    """A folded node, and the interval in which it is right if no fact changes."""

    info: NodeInfo
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growing:
    """A pod whose larger slices count before it is observed with them."""

    wanted: PodAllocation
    observed: PodAllocation


def _larger(pod: PodAllocation, other: PodAllocation) -> PodAllocation:
    """Return a pod with each of its slices at least as large as the other's."""
    by_card = {
        card: _larger_of(held, other.by_card[card]) if card in other.by_card else held
        for card, held in pod.by_card.items()
    }
    return pod if by_card == pod.by_card else msgspec.structs.replace(pod, by_card=by_card)


def _larger_of(held: CardAllocation, other: CardAllocation) -> CardAllocation:
    """Return an allocation of as much as the larger of two, which may use as much as either."""
    mib = max(held.mib, other.mib)
    borrow_mib = max(held.limit_mib, other.limit_mib) - mib
    return msgspec.structs.replace(held, mib=mib, borrow_mib=Mib(borrow_mib))


class Ledger:
    """Folds pods, nodes, Moves and assumptions into what is held of each card.

    An observation of a pod always wins over an assumption about it, and a pod holds its cards until
    it is terminal or gone, not until its deletion timestamp. A node is folded from its pods on
    demand, and the result is kept until something about the node changes. It never acts by itself.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeCards] = {}
        self._observed: dict[str, PodAllocation] = {}
        self._assumed: dict[str, Assumption] = {}
        self._growing: dict[str, _Growing] = {}
        self._on_node: dict[str, set[str]] = {}
        self._assumed_on: dict[str, set[str]] = {}
        self._reservations = ReservationIndex()
        self._folded: dict[str, _FoldedNode] = {}
        self._dirty: set[str] = set()
        self._ends: dict[str, datetime] = {}
        self._next_end: datetime | None = None  # lower bound of _ends

    def set_node(self, node: NodeCards) -> None:
        if self._nodes.get(node.node) == node:
            return
        self._nodes[node.node] = node
        self._touch(node.node)

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._touch(name)

    def set_pod(self, pod: PodRecord) -> None:
        """Record a pod as the API server shows it now."""
        self.observe(allocation_of(pod))

    def set_claims(self, claims: MoveClaims) -> None:
        """Record what a Move claims now."""
        self._touch_all(self._reservations.put(claims))

    def remove_move(self, name: str) -> None:
        """Record that a Move is gone, and with it all that it claimed."""
        self._touch_all(self._reservations.remove(name))

    def observe(self, pod: PodAllocation) -> None:
        """Record what a pod holds now: nothing if it is not bound, not ours, or has ended."""
        before = self._observed.get(pod.pod_uid)
        growing = self._growing.get(pod.pod_uid)
        if growing is not None:
            larger = _larger(pod, growing.wanted)
            if larger == pod:
                del self._growing[pod.pod_uid]
            else:
                self._growing[pod.pod_uid] = replace(growing, observed=pod)
            pod = larger
        if pod.node:
            self.forget(pod.pod_uid)
        if before == pod or (before is None and not pod.holds_anything):
            return
        self._unobserve(pod.pod_uid)
        if pod.node and pod.holds_anything:
            self._observed[pod.pod_uid] = pod
            self._on_node.setdefault(pod.node, set()).add(pod.pod_uid)
            self._touch(pod.node)
            self._consume(pod.move, pod.pod_uid)
            self._touch_kept(pod.pod_uid)

    def remove_pod(self, uid: str) -> None:
        """Record that a pod is gone."""
        self._growing.pop(uid, None)
        self._unobserve(uid)
        self.forget(uid)

    def grow(self, pod: PodAllocation) -> None:
        """Count a bound pod's larger slices before the API server shows them.

        Until the pod is observed with them, or :meth:`keep` says that it never will be.
        """
        before = self._observed.get(pod.pod_uid)
        if before is not None and _larger(before, pod) != before:
            known = self._growing.get(pod.pod_uid)
            self._growing[pod.pod_uid] = _Growing(
                wanted=pod, observed=before if known is None else known.observed
            )
            self.observe(self._growing[pod.pod_uid].observed)

    def keep(self, uid: str) -> None:
        """Count a pod as it was observed: what was to be written for it was not."""
        growing = self._growing.pop(uid, None)
        if growing is not None:
            self.observe(growing.observed)

    @property
    def growing(self) -> Collection[str]:
        """The pods that are counted as larger than they have been observed, by UID."""
        return self._growing.keys()

    def assume(  # noqa: PLR0913 - the facts of one placement
        self,
        pod: PodRecord,
        *,
        node: str,
        assignment: Assignment,
        until: datetime,
        move: str = "",
        nominated: bool = False,
        gang: bool = False,
        host: HostResources = NO_HOST_RESOURCES,
    ) -> Assumption:
        """Count a placement before its Binding is confirmed, and return the assumption.

        A pod that has been observed as bound is not counted a second time. With *move* the
        placement consumes the reservation of that Move.
        """
        holds = allocations_by_card(assignment, pod.counted)
        assumption = Assumption(
            allocation=PodAllocation(pod_uid=pod.uid, node=node, by_card=holds),
            until=until,
            move=move,
            nominated=nominated,
            gang=gang,
            by_claim=pod.by_claim,
            host=host,
        )
        if pod.uid not in self._observed:
            self.forget(pod.uid)
            self._assumed[pod.uid] = assumption
            self._assumed_on.setdefault(node, set()).add(pod.uid)
            self._touch(node)
            self._consume(move, pod.uid, until=until)
            self._touch_kept(pod.uid)
        return assumption

    def forget(self, uid: str) -> None:
        """Drop an assumption: its Binding failed, or an observation replaced it."""
        assumption = self._assumed.pop(uid, None)
        if assumption is not None:
            node = assumption.allocation.node
            discard(self._assumed_on, node, uid)
            self._touch(node)
            self._release(assumption.move, uid)
            self._touch_kept(uid)

    def lapse(self, *, now: datetime) -> tuple[str, ...]:
        """Drop expired assumptions, and return the UIDs of their pods."""
        lapsed = tuple(uid for uid, assumption in self._assumed.items() if assumption.until <= now)
        for uid in lapsed:
            self.forget(uid)
        return lapsed

    @property
    def assumed(self) -> Mapping[str, Assumption]:
        """Assumptions by pod UID, read only."""
        return MappingProxyType(self._assumed)

    @property
    def observed(self) -> Mapping[str, PodAllocation]:
        """Observed allocations by pod UID, read only."""
        return MappingProxyType(self._observed)

    @property
    def nodes(self) -> Mapping[str, NodeCards]:
        """The nodes by name, read only."""
        return MappingProxyType(self._nodes)

    @property
    def reservations(self) -> ReservationIndex:
        """What Moves claim; change it only by the methods of the ledger."""
        return self._reservations

    def assumed_on(self, node: str, *, but: str) -> Sequence[Assumption]:
        """Return the assumptions about pods on a node, but for that of the pod with UID *but*."""
        return [self._assumed[uid] for uid in self._assumed_on.get(node, ()) if uid != but]

    def pods_on(self, node: str) -> frozenset[str]:
        """Return the UIDs of pods that hold something on a node, observed or assumed."""
        return frozenset(self._on_node.get(node, ())) | frozenset(self._assumed_on.get(node, ()))

    def take_changed(self, *, now: datetime) -> frozenset[str]:
        """Return the nodes that may differ from what `node` returned since the last call.

        The call clears the set, so there can be only one caller: one that keeps derived data up to
        date.
        """
        # Every node with known heat has an end; scanning them all for each request would be slow.
        if self._next_end is not None and self._next_end <= now:
            for name in [name for name, end in self._ends.items() if end <= now]:
                del self._ends[name]
                self._dirty.add(name)
            self._next_end = min(self._ends.values(), default=None)
        changed = frozenset(self._dirty)
        self._dirty.clear()
        return changed

    def node(self, name: str, *, now: datetime) -> NodeInfo | None:
        """Return one node as it is at *now*, or None if it is unknown."""
        folded = self._folded.get(name)
        if (
            folded is None
            or now < folded.since
            or (folded.until is not None and now >= folded.until)
        ):
            node = self._nodes.get(name)
            if node is None:
                return None
            end = self._ends.get(name)
            if end is not None and end <= now:  # take_changed has not reported it yet
                self._dirty.add(name)
            folded = self._folded[name] = self._fold(node, now=now)
            self._ends.pop(name, None)
            if folded.until is not None:
                self._ends[name] = folded.until
                self._next_end = min(folded.until, self._next_end or folded.until)
        return folded.info

    def node_but(self, name: str, uid: str, *, now: datetime) -> NodeInfo | None:
        """Return one node without what is assumed for one pod, so that it does not block itself."""
        info = self.node(name, now=now)
        assumption = self._assumed.get(uid)
        if info is None or assumption is None or assumption.until <= now:
            return info
        allocation = assumption.allocation
        return (
            info
            if allocation.node != name
            else info.without_allocations(allocation.by_card, pod_uid=uid)
        )

    def _fold(self, node: NodeCards, *, now: datetime) -> _FoldedNode:
        name = node.node
        pods = [self._observed[uid] for uid in sorted(self._on_node.get(name, ()))]
        assumed = [self._assumed[uid] for uid in sorted(self._assumed_on.get(name, ()))]
        pods += [one.allocation for one in assumed if one.until > now]
        holds = self._reservations.holds_on(name)
        placed = [hold.pod_uid for hold in holds if self._is_placed(hold.pod_uid, now=now)]
        heat = node.known_heat(now=now)
        info = build_node_info(
            node,
            pods,
            cordons=node.effects(now=now),
            heat=heat,
            reservations=self._reservations.on_node(name, now=now),
            kept=held_cards(holds, placed=placed, now=now),
        )
        # When the node differs from what it is now, though no fact changes.
        ends = [*(cordon.until for cordon in node.cordons), *node.heat_changes_at]
        ends += [one.until for one in assumed]
        ends += self._reservations.changes_on(name)
        for hold in self._reservations.holds_on(name):
            assumption = self._assumed.get(hold.pod_uid)
            if assumption is not None:
                ends.append(assumption.until)
        return _FoldedNode(info, now, min((end for end in ends if end > now), default=None))

    def holds_against(self, uid: str, *, now: datetime) -> list[CardHold]:
        """Return what Moves keep now for other pods that wait; one for each of them and node."""
        found: dict[tuple[str, str], CardHold] = {}
        for node in self._reservations.nodes_with_holds():
            for hold in self._reservations.holds_on(node):
                if (
                    hold.until > now
                    and hold.pod_uid != uid
                    and not self._is_placed(hold.pod_uid, now=now)
                ):
                    found[hold.pod_uid, node] = hold
        return list(found.values())

    def snapshot(self, *, now: datetime) -> Snapshot:
        """Return all nodes and allocations, assumptions that have not lapsed included."""
        nodes = {}
        for name in sorted(self._nodes):
            info = self.node(name, now=now)
            assert info is not None, "a known node"
            nodes[name] = info
        pods = dict(self._observed)
        for uid, assumption in self._assumed.items():
            if assumption.until > now:
                pods[uid] = assumption.allocation
        return Snapshot(nodes=MappingProxyType(nodes), pods=MappingProxyType(pods))

    def free_mib(self, *, now: datetime) -> dict[CardUuid, Mib]:
        """Return the free MiB of each card of every known node."""
        return {
            uuid: card.free_mib
            for info in self.snapshot(now=now).nodes.values()
            for uuid, card in info.cards.items()
        }

    def _unobserve(self, uid: str) -> None:
        allocation = self._observed.pop(uid, None)
        if allocation is not None:
            discard(self._on_node, allocation.node, uid)
            self._touch(allocation.node)
            self._release(allocation.move, uid)
            self._touch_kept(uid)

    def _is_placed(self, uid: str, *, now: datetime) -> bool:
        assumption = self._assumed.get(uid)
        return uid in self._observed or (assumption is not None and assumption.until > now)

    def _touch_kept(self, uid: str) -> None:
        """Fold the nodes again on which cards are kept for a pod: whether it is placed changes."""
        self._touch_all(hold.node for hold in self._reservations.holds_for(uid))

    def _consume(self, move: str, uid: str, *, until: datetime | None = None) -> None:
        if move:
            self._touch_all(self._reservations.consume(move, pod_uid=uid, until=until))

    def _release(self, move: str, uid: str) -> None:
        if move:
            self._touch_all(self._reservations.release(move, pod_uid=uid))

    def _touch_all(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._touch(node)

    def _touch(self, node: str) -> None:
        self._folded.pop(node, None)
        self._dirty.add(node)


def with_claims(snapshot: Snapshot, claims: Iterable[MoveClaims], *, now: datetime) -> Snapshot:
    """Return a snapshot of nodes and pods alone with what Moves reserve and keep at *now*.

    A reservation counts until it lapses, or while no pod carries the name of its Move; a card is
    kept until that lapses or its pod is placed.
    """
    index = ReservationIndex()
    moves: set[str] = set()
    for one in claims:
        index.put(one)
        moves.add(one.move)
    claimed = index.nodes()
    if not claimed:
        return snapshot
    for uid, pod in snapshot.pods.items():
        if pod.move in moves:
            index.consume(pod.move, pod_uid=uid)
    nodes = dict(snapshot.nodes)
    for name in claimed & nodes.keys():
        holds = index.holds_on(name)
        placed = [hold.pod_uid for hold in holds if hold.pod_uid in snapshot.pods]
        nodes[name] = nodes[name].with_claims(
            index.on_node(name, now=now), held_cards(holds, placed=placed, now=now)
        )
    return replace(snapshot, nodes=nodes)
