"""What a container that starts may have: its cards, if all that is known of them agrees."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.errors import counted
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.quantity import integer_amount
from fracgpu.state.allocation import CardAllocation, Slice, allocations_by_card
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib

PodKey = tuple[str, str]
"""Namespace and name: all that PodResources reports of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """One container that kubelet lists as holding slots."""

    namespace: str
    pod: str
    container: str
    slot_ids: frozenset[str]

    @property
    def key(self) -> PodKey:
        return (self.namespace, self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaims:
    """What is known of this node when a container starts.

    Attributes:
        pods: the pods of this node by UID.
        cards: this node's cards as they are now.
    """

    node: str
    cards: Mapping[CardUuid, Card]
    pods: Mapping[str, PodInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The container that may start, its pod, and the cards assigned to it."""

    pod: PodInfo
    container: str
    slices: tuple[Slice, ...]
    cards: tuple[Card, ...]


class RejectReason(Enum):
    """Why a container may not start; the value is a metric label."""

    NOBODY = "nobody_holds_them"
    SEVERAL = "several_may_hold_them"
    UNKNOWN_POD = "pod_unknown"
    ENDED = "pod_has_ended"
    DIFFERS = "assignment_differs"
    OLD_SPEC = "old_spec"
    WRONG_NODE = "pod_of_another_node"
    NOT_ASSIGNED = "not_assigned"
    UNREADABLE = "assignment_unreadable"
    WRONG_COUNT = "slots_and_cards_differ"
    WRONG_SIZE = "size_differs_from_limit"
    NO_SUCH_CARD = "card_not_here"
    UNHEALTHY = "card_unhealthy"
    OVER_CAPACITY = "card_over_capacity"
    OVER_SLOTS = "card_over_slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Why a container may not start; *text* names pods and cards, and reaches the pod's events."""

    reason: RejectReason
    text: str


def claim_of(container: str, pod: PodInfo, node_claims: NodeClaims) -> Claim | Rejected:
    """Return the claim of a pod's container, or why it may not have its cards."""
    record = pod.record
    whose = f"container {container} of {record.key}"
    if record.node != node_claims.node:
        text = f"{record.key} is bound to {record.node or 'no node'}, not to {node_claims.node}"
        return Rejected(reason=RejectReason.WRONG_NODE, text=text)
    if not record.live:
        return Rejected(reason=RejectReason.ENDED, text=f"{record.key} has ended")
    if record.problem:
        text = f"{record.key}: {record.problem}"
        return Rejected(reason=RejectReason.UNREADABLE, text=text)
    slices = (record.limits or {}).get(container, ())
    if not slices:
        text = f"{whose} has no cards in {names.ASSIGNMENT}; it was not bound by FracGPU"
        return Rejected(reason=RejectReason.NOT_ASSIGNED, text=text)
    spec = next((spec for spec in record.containers if spec.name == container), None)
    slots = wanted_slots(spec)
    if len(slices) != slots:
        text = f"{whose} requests {counted(slots, 'slot')} and is assigned "
        text += counted(len(slices), "card")
        return Rejected(reason=RejectReason.WRONG_COUNT, text=text)
    assigned = slices if record.resize is None else record.resize.assigned[container]
    rejected = _check_size(whose, assigned, spec) or _check_cards(slices, whose, node_claims)
    if rejected is not None:
        return rejected
    cards = tuple(node_claims.cards[part.card] for part in slices)
    return Claim(pod=pod, container=container, slices=slices, cards=cards)


def wanted_slots(spec: ContainerSpec | None) -> int:
    """Return how many slots a container requests."""
    return (integer_amount(spec.limits.get(names.GPU_SLOT, "")) if spec else None) or 0


def _check_size(whose: str, slices: Sequence[Slice], spec: ContainerSpec | None) -> Rejected | None:
    limit = integer_amount(spec.limits.get(names.GPU_MEM, "")) if spec is not None else None
    assigned_mib = sum(part.mib for part in slices)
    if limit == assigned_mib:
        return None
    text = (
        f"{whose} is assigned {assigned_mib} MiB, "
        f"but its limit {names.GPU_MEM} is {limit if limit is not None else 'absent'}"
    )
    return Rejected(reason=RejectReason.WRONG_SIZE, text=text)


def _check_cards(slices: Sequence[Slice], whose: str, node_claims: NodeClaims) -> Rejected | None:
    for part in slices:
        card = node_claims.cards.get(part.card)
        if card is None:
            text = f"{whose} is assigned {part.card}, which {node_claims.node} does not have"
            return Rejected(reason=RejectReason.NO_SUCH_CARD, text=text)
        if card.health is not Health.HEALTHY:
            text = f"{whose} is assigned {part.card}, which is unhealthy: {card.health_reason}"
            return Rejected(reason=RejectReason.UNHEALTHY, text=text)
    held = held_on(node_claims.pods.values(), node=node_claims.node)
    unplaced = _unplaced(node_claims)
    for part in slices:
        card, total = node_claims.cards[part.card], held[part.card]
        what = f"{whose} is assigned {part.mib} MiB of {part.card}, on which the pods of"
        if total.mib + sum(allocation.mib for allocation in unplaced.values()) > card.capacity_mib:
            text = f"{what} {node_claims.node} together hold {total.mib} of {card.capacity_mib} MiB"
            for pod, most in sorted(unplaced.items()):
                text += f", and {pod} up to {most.mib} more: its {names.ASSIGNMENT} cannot be read"
            return Rejected(reason=RejectReason.OVER_CAPACITY, text=text)
        if total.slots + sum(allocation.slots for allocation in unplaced.values()) > card.slots:
            what = f"{what} {node_claims.node} together have"
            text = f"{what} {total.slots} containers of {card.slots}"
            return Rejected(reason=RejectReason.OVER_SLOTS, text=text)
    return None


def _unplaced(node_claims: NodeClaims) -> Mapping[str, CardAllocation]:
    """Return the pods that may be on any card, with the most that each may hold of one."""
    largest_mib = max(card.capacity_mib for card in node_claims.cards.values())
    found = {}
    for pod in node_claims.pods.values():
        record = pod.record
        if record.node == node_claims.node and (most := allocation_of(record).unplaced):
            found[record.key] = structs.replace(most, mib=Mib(min(most.mib, largest_mib)))
    return found


def held_on(pods: Iterable[PodInfo], *, node: str) -> dict[CardUuid, CardAllocation]:
    """Return what the live pods of *node* are assigned of each card."""
    held: dict[CardUuid, CardAllocation] = {}
    for pod in pods:
        record = pod.record
        if record.live and record.node == node and record.assignment is not None:
            by_card = allocations_by_card(record.assignment, record.containers)
            for card, allocation in by_card.items():
                before = held.get(card, CardAllocation(mib=Mib(0), slots=0))
                held[card] = CardAllocation(
                    mib=Mib(before.mib + allocation.mib),
                    cores=before.cores + allocation.cores,
                    slots=before.slots + allocation.slots,
                )
    return held


def id_list(slot_ids: Iterable[str]) -> str:
    """Return slot ids as texts show them."""
    return ",".join(sorted(slot_ids))
