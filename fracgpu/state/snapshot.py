"""Every card and what is held on it at one moment: immutable; what-if questions make copies."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
from msgspec import structs

from fracgpu.cards.card import Card, CardUuid, CordonEffect, NodeCards
from fracgpu.state.allocation import (
    WHOLE_CARD,
    CardAllocation,
    PodRecord,
    allocations_by_card,
    most_by_limits,
)
from fracgpu.state.card_hold import CardHold
from fracgpu.state.reservation import Reservation
from fracgpu.units import Mib

_NONE_KEPT: Final[Mapping[CardUuid, CardHold]] = MappingProxyType({})
_NO_MIB: Final = Mib(0)
_NOTHING_HELD: Final = (_NO_MIB, 0, 0, 0)
_NO_CORDONS: Final[Mapping[CardUuid, CordonEffect]] = MappingProxyType({})
_NO_HEAT: Final[Mapping[CardUuid, float]] = MappingProxyType({})


class CardInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One card and what is held on it (requested, not measured), by pods and by Moves.

    Attributes:
        held_mib: what pods hold and Moves reserve; cores and slots likewise.
        held_borrow_mib: how much more pods may use.
        reserved_mib: what Moves reserve of that.
        pods: the UIDs of the pods that hold something of it, in order. It is no set, because of
            each set that there is for as long as a card the garbage collector would look at.
        moves: names of the Moves that reserve something.
        cordoned: it takes no new slices.
        avoided: it takes new slices where no other card fits.
        kept_for: the UID of the one pod from which the card takes slices now, or the Move whose
            replacement it is; empty for any pod.
        foreign_mib: what processes outside any known pod hold; it is not free either.
        unplaced_mib: what pods of the node with an unreadable assignment may hold: it may be on
            any of the node's cards, so it is counted on each of them.
        heat: how busy the card was lately, 0..1; 1 if unknown, since unknown is never cool.
        by_claims: kube-scheduler allocates it, to claims.
    """

    card: Card
    held_mib: Mib = Mib(0)
    held_cores: int = 0
    held_slots: int = 0
    held_borrow_mib: Mib = Mib(0)
    pods: tuple[str, ...] = ()
    reserved_mib: Mib = Mib(0)
    moves: frozenset[str] = frozenset()
    kept_for: str = ""
    cordoned: bool = False
    avoided: bool = False
    foreign_mib: Mib = Mib(0)
    unplaced_mib: Mib = Mib(0)
    heat: float = 1.0
    by_claims: bool = False

    @property
    def taken_mib(self) -> int:
        """What is not free."""
        return self.held_mib + self.foreign_mib + self.unplaced_mib

    @property
    def free_mib(self) -> Mib:
        """Capacity less what is taken; negative if the capacity shrank below what pods hold."""
        return Mib(self.card.capacity_mib - self.taken_mib)

    @property
    def free_limit_mib(self) -> Mib:
        """How much more the limits of its containers may add up to.

        Limits that were given count for as long as their pods run, also on a card that has lost its
        limits since.
        """
        return Mib(self.card.most_limits_mib - self.taken_mib - self.held_borrow_mib)

    @property
    def free_slots(self) -> int:
        """How many more containers may hold a slice of the card."""
        return self.card.slots - self.held_slots

    def with_allocation(self, allocation: CardAllocation, *, pod_uid: str) -> "CardInfo":
        pods = tuple(sorted({*self.pods, pod_uid}))
        return structs.replace(self._holding(allocation), pods=pods)

    def without_allocation(self, allocation: CardAllocation, *, pod_uid: str) -> "CardInfo":
        pods = tuple(uid for uid in self.pods if uid != pod_uid)
        return structs.replace(self._holding(allocation, times=-1), pods=pods)

    def with_reservation(self, reservation: Reservation, *, closed: bool = False) -> "CardInfo":
        """Return the card with what a Move reserves; *closed* to all but its replacement."""
        return structs.replace(
            self._holding(reservation.allocation),
            reserved_mib=Mib(self.reserved_mib + reservation.allocation.mib),
            moves=self.moves | {reservation.move},
            kept_for=reservation.move if closed else self.kept_for,
        )

    def without_reservation(self, reservation: Reservation) -> "CardInfo":
        return structs.replace(
            self._holding(reservation.allocation, times=-1),
            reserved_mib=Mib(self.reserved_mib - reservation.allocation.mib),
            moves=self.moves - {reservation.move},
            kept_for="" if self.kept_for == reservation.move else self.kept_for,
        )

    def _holding(self, allocation: CardAllocation, *, times: int = 1) -> "CardInfo":
        return structs.replace(
            self,
            held_mib=Mib(self.held_mib + times * allocation.mib),
            held_cores=self.held_cores + times * allocation.cores,
            held_slots=self.held_slots + times * allocation.slots,
            held_borrow_mib=Mib(self.held_borrow_mib + times * allocation.borrow_mib),
        )


class _Change(Protocol):
    """The signature of CardInfo.with_allocation and CardInfo.without_allocation."""

    def __call__(
        self, card: CardInfo, allocation: CardAllocation, /, *, pod_uid: str
    ) -> CardInfo: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node's cards by UUID, in index order.

    Attributes:
        heat: how busy cards were lately, 0..1, of those where it is known; for display.
    """

    node: NodeCards
    cards: Mapping[CardUuid, CardInfo]
    heat: Mapping[CardUuid, float] = field(default_factory=lambda: _NO_HEAT)

    @property
    def free_mib(self) -> Mib:
        return Mib(sum(card.free_mib for card in self.cards.values()))

    def with_allocations(
        self, allocations: Mapping[CardUuid, CardAllocation], *, pod_uid: str
    ) -> "NodeInfo":
        """Return the node as it would be if a pod that holds nothing yet held *allocations*."""
        cards = dict(self.cards)
        for uuid, allocation in allocations.items():
            if uuid in cards:
                cards[uuid] = cards[uuid].with_allocation(allocation, pod_uid=pod_uid)
        return replace(self, cards=MappingProxyType(cards))

    def without_allocations(
        self, allocations: Mapping[CardUuid, CardAllocation], *, pod_uid: str
    ) -> "NodeInfo":
        """Return the node as it would be without a pod that holds *allocations*."""
        cards = dict(self.cards)
        for uuid, allocation in allocations.items():
            if uuid in cards:
                cards[uuid] = cards[uuid].without_allocation(allocation, pod_uid=pod_uid)
        return replace(self, cards=MappingProxyType(cards))

    def without_pods(self, pods: Iterable["PodAllocation"]) -> "NodeInfo":
        """Return the node as it would be without some pods."""
        left = self
        for pod in pods:
            left = left.without_allocations(pod.by_card, pod_uid=pod.pod_uid)
        return left

    def with_claims(
        self, reservations: Iterable[Reservation], kept: Mapping[CardUuid, CardHold]
    ) -> "NodeInfo":
        """Return the node with what Moves claim of it: the one place where that is counted.

        A share that is reserved keeps off all but the replacement where kube-scheduler allocates
        the cards: it would not leave that share free, so the agent taints the whole card.

        Args:
            reservations: those that hold now and are not consumed.
            kept: the cards that are kept for waiting pods now.
        """
        changed: dict[CardUuid, CardInfo] = {}
        for reservation in reservations:
            card_info = changed.get(reservation.card) or self.cards.get(reservation.card)
            if card_info is not None:
                changed[reservation.card] = card_info.with_reservation(
                    reservation, closed=self.node.by_claims
                )
        for uuid, hold in kept.items():
            card_info = changed.get(uuid) or self.cards.get(uuid)
            if card_info is not None:
                changed[uuid] = structs.replace(card_info, kept_for=hold.pod_uid)
        if not changed:
            return self
        return replace(self, cards=MappingProxyType({**self.cards, **changed}))

    def without_reservation(self, reservation: Reservation) -> "NodeInfo":
        """Return the node as the pod sees it that *reservation* is for."""
        card_info = self.cards.get(reservation.card)
        if card_info is None or reservation.move not in card_info.moves:
            return self
        free = card_info.without_reservation(reservation)
        return replace(self, cards=MappingProxyType({**self.cards, reservation.card: free}))

    def opened_for(self, pod_uid: str) -> "NodeInfo":
        """Return the node as a pod sees it for which cards of it are kept."""
        if not any(card_info.kept_for == pod_uid for card_info in self.cards.values()):
            return self
        changed = {
            uuid: structs.replace(card_info, kept_for="")
            if card_info.kept_for == pod_uid
            else card_info
            for uuid, card_info in self.cards.items()
        }
        return replace(self, cards=MappingProxyType(changed))

    def with_cordoned(self, cards: Container[CardUuid]) -> "NodeInfo":
        """Return the node as a pod sees it that is kept off *cards*."""
        if not any(uuid in cards for uuid in self.cards):
            return self
        changed = {
            uuid: structs.replace(card_info, cordoned=True) if uuid in cards else card_info
            for uuid, card_info in self.cards.items()
        }
        return replace(self, cards=MappingProxyType(changed))


class PodAllocation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one pod holds, by card.

    There are as many of these as pods, so they are none of the garbage collector's: it would look
    at each of them again and again.

    Attributes:
        unplaced: the most it may hold of each card, if its assignment cannot be read.
        move: the name of the Move whose reservation it consumed; empty if it consumed none.
    """

    pod_uid: str
    node: str
    by_card: Mapping[CardUuid, CardAllocation]
    unplaced: CardAllocation | None = None
    move: str = ""

    @property
    def holds_anything(self) -> bool:
        """Whether it holds something, or may hold something."""
        return bool(self.by_card) or self.unplaced is not None

    @property
    def borrows(self) -> bool:
        """Whether it may use more of a card than it is guaranteed."""
        return any(held.borrow_mib for held in self.by_card.values())


def allocation_of(pod: PodRecord) -> PodAllocation:
    """Return what a pod holds: nothing unless it is bound and live.

    An assignment that cannot be read counts as the most that the pod may hold.
    """
    if not (pod.live and pod.node):
        return PodAllocation(pod_uid=pod.uid, node=pod.node, by_card={})
    holds = allocations_by_card(pod.assignment or {}, pod.counted)
    most = WHOLE_CARD if pod.resized else most_by_limits(pod.containers)
    unplaced = most if pod.problem else None
    return PodAllocation(
        pod_uid=pod.uid, node=pod.node, by_card=holds, unplaced=unplaced, move=pod.move
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Nodes by name, and what each pod holds by UID, at one moment."""

    nodes: Mapping[str, NodeInfo] = field(default_factory=dict)
    pods: Mapping[str, PodAllocation] = field(default_factory=dict)

    def with_(self, pod: PodAllocation) -> "Snapshot":
        """Return the snapshot as it would be if *pod* held this as well."""
        assert pod.pod_uid not in self.pods, f"pod {pod.pod_uid} is in the snapshot already"
        return Snapshot(
            nodes=self._changed(pod, CardInfo.with_allocation), pods={**self.pods, pod.pod_uid: pod}
        )

    def without(self, pod_uid: str) -> "Snapshot":
        """Return the snapshot as it would be without the pod; an unknown pod changes nothing."""
        pod = self.pods.get(pod_uid)
        if pod is None:
            return self
        rest = {uid: allocation for uid, allocation in self.pods.items() if uid != pod_uid}
        return Snapshot(nodes=self._changed(pod, CardInfo.without_allocation), pods=rest)

    def card(self, uuid: CardUuid) -> CardInfo | None:
        for node in self.nodes.values():
            if uuid in node.cards:
                return node.cards[uuid]
        return None

    def _changed(self, pod: PodAllocation, change: _Change) -> Mapping[str, NodeInfo]:
        node = self.nodes.get(pod.node)
        if node is None:
            return self.nodes
        cards = dict(node.cards)
        for uuid, allocation in pod.by_card.items():
            if uuid in cards:
                cards[uuid] = change(cards[uuid], allocation, pod_uid=pod.pod_uid)
        return {**self.nodes, pod.node: replace(node, cards=MappingProxyType(cards))}


def build_node_info(
    node: NodeCards,
    pods: Iterable[PodAllocation],
    *,
    cordons: Mapping[CardUuid, CordonEffect] = _NO_CORDONS,
    heat: Mapping[CardUuid, float] = _NO_HEAT,
    reservations: Iterable[Reservation] = (),
    kept: Mapping[CardUuid, CardHold] = _NONE_KEPT,
) -> NodeInfo:
    """Return *node* with what *pods* hold and *reservations* keep of each of its cards.

    Allocations of cards that the node no longer has are dropped: there is nothing left to count
    them on. A pod whose assignment cannot be read counts on every card, up to the whole card.

    Args:
        node: the node and its cards.
        pods: what its pods hold.
        reservations: those that hold now and are not consumed.
        cordons: the cards that are cordoned now, and to what effect.
        heat: the heat that is known now, 0..1.
        kept: the cards that are kept for waiting pods now.
    """
    unplaced_mib = unplaced_cores = unplaced_slots = 0
    held: dict[CardUuid, tuple[Mib, int, int, int]] = {}
    holders: dict[CardUuid, list[str]] = {}
    for pod in pods:
        if pod.unplaced is not None:
            unplaced_mib += pod.unplaced.mib
            unplaced_cores += pod.unplaced.cores
            unplaced_slots += pod.unplaced.slots
        for uuid, allocation in pod.by_card.items():
            mib, cores, slots, borrow_mib = held.get(uuid, _NOTHING_HELD)
            mib = Mib(mib + allocation.mib)
            borrow_mib += allocation.borrow_mib
            held[uuid] = (mib, cores + allocation.cores, slots + allocation.slots, borrow_mib)
            holders.setdefault(uuid, []).append(pod.pod_uid)
    cards = {}
    for card in sorted(node.cards, key=lambda card: (card.index, card.uuid)):
        uuid = card.uuid
        mib, cores, slots, borrow_mib = held.get(uuid, _NOTHING_HELD)
        cordon = cordons.get(uuid)
        cards[uuid] = CardInfo(
            card=card,
            held_mib=mib,
            held_cores=cores + unplaced_cores,
            held_slots=slots + unplaced_slots,
            held_borrow_mib=Mib(borrow_mib),
            pods=tuple(sorted(holders.get(uuid, ()))),
            cordoned=cordon is CordonEffect.NO_SCHEDULE,
            avoided=cordon is CordonEffect.PREFER_NO_SCHEDULE,
            foreign_mib=node.foreign.get(uuid, _NO_MIB),
            unplaced_mib=Mib(min(unplaced_mib, card.capacity_mib)) if unplaced_mib else _NO_MIB,
            heat=heat.get(uuid, 1.0),
            by_claims=node.by_claims,
        )
    info = NodeInfo(node=node, cards=MappingProxyType(cards), heat=heat)
    return info.with_claims(reservations, kept)
