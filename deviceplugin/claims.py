"""Whose slot ids are these, and what was that container promised? Any doubt is a "no"."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.quantity import whole_amount
from fracgpu.state.allocation import CardAllocation, Slice, allocations_by_card
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib

PodKey = tuple[str, str]
"""Namespace and name: all that PodResources tells of a pod."""


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
        pods: the pods of this node, and those that PodResources names, wherever they are now.
        cards: this node's cards as they are now.
        token: what we asked kubelet to say of the container that it wants to start, or empty.
        owner_uid: the pod last verified to hold these ids, if they were not handed out since.
    """

    node: str
    cards: Mapping[CardUuid, Card]
    pods: Mapping[PodKey, PodInfo] = field(default_factory=dict)
    token: str = ""
    owner_uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer yes: this container of this pod, on these cards."""

    pod: PodInfo
    container: str
    slices: tuple[Slice, ...]
    cards: tuple[Card, ...]


class RejectReason(Enum):
    """Why a container may not start; the value is a metric label."""

    NOBODY = "nobody_holds_them"
    SEVERAL_PODS = "several_pods_hold_them"
    PARTLY_HELD = "held_in_other_sets"
    AMBIGUOUS = "container_unclear"
    UNLISTED = "container_not_listed"
    LISTED_TWICE = "container_listed_twice"
    OTHER_POD = "pod_of_same_name"
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
    """The answer no, and why; *text* names the things and reaches the pod's events."""

    reason: RejectReason
    text: str

    @property
    def askable(self) -> bool:
        """Whether kubelet could settle it by saying which container it wants to start."""
        return self.reason in (RejectReason.AMBIGUOUS, RejectReason.UNLISTED)


def resolve(
    slot_ids: frozenset[str], holders: Sequence[SlotHolder], picture: NodeClaims
) -> Claim | Rejected:
    """Find the one container that *slot_ids* were handed to, and what it was promised.

    =====================================  ==============================================
    kubelet lists as holder                answer
    =====================================  ==============================================
    nobody, or only ended or unknown pods  the init container whose status carries our token;
                                           without one, no: ask, if an init container of a
                                           live pod here wants as many slots, else nobody
    containers of several live pods        no: several pods
    one container, with exactly these ids  that container, unless an init container of the
                                           pod could be meant and was promised other cards:
                                           then the one that carries our token, or no: ask
    only other sets that share an id       the init container that hands them on, if there is
                                           exactly one with as many slots, or by the token
    =====================================  ==============================================

    Ended and unknown pods are passed over because a kubelet without kubernetes PR 132028 still
    lists them. Plain init containers are never listed: kubelet hands their ids to app containers,
    or keeps them to itself where no app container wants any. An unlisted one is never inferred,
    not even where only one could be meant: kubelet may know a pod that the API has forgotten.
    """
    live = [it for it in holders if it.slot_ids & slot_ids and _is_live(it.key, picture)]
    keys = sorted({it.key for it in live})
    if not keys:
        unlisted = _unlisted(slot_ids, picture)
        if unlisted:
            return _answered(unlisted, slot_ids, picture)
        others = sorted({f"{it.namespace}/{it.pod}" for it in holders if it.slot_ids & slot_ids})
        dead = f"; kubelet lists {', '.join(others)}, ended or unknown" if others else ""
        return _no(RejectReason.NOBODY, f"no live pod holds {_ids(slot_ids)}{dead}")
    if len(keys) > 1:
        pods = " and ".join("/".join(key) for key in keys)
        return _no(RejectReason.SEVERAL_PODS, f"{_ids(slot_ids)} are held by {pods}")
    pod = picture.pods[keys[0]]
    listed = [it for it in holders if it.key == keys[0]]
    container = _container(slot_ids, listed, pod, token=picture.token)
    if isinstance(container, Rejected):
        return container
    return _promise(container, slot_ids, pod, picture)


def _unlisted(slot_ids: frozenset[str], picture: NodeClaims) -> list[tuple[PodInfo, str]]:
    """Find the plain init containers of this node that want as many slots and might start now."""
    return [
        (pod, it.name)
        for _, pod in sorted(picture.pods.items())
        if pod.record.live and not pod.record.terminating and pod.record.node == picture.node
        for it in pod.record.containers
        if it.kind is ContainerKind.INIT and _amount(it, names.GPU_SLOT) == len(slot_ids)
    ]


def _answered(
    unlisted: Sequence[tuple[PodInfo, str]], slot_ids: frozenset[str], picture: NodeClaims
) -> Claim | Rejected:
    told = [(pod, name) for pod, name in unlisted if _tells(pod, name, picture.token)]
    if len(told) == 1:
        ((pod, container),) = told
        return _promise(container, slot_ids, pod, picture)
    return _no(
        RejectReason.UNLISTED,
        f"kubelet does not list who holds {_ids(slot_ids)}, as it does for init containers; "
        "waiting until it says in the pod's status whose start this is",
    )


def _tells(pod: PodInfo, container: str, token: str) -> bool:
    """Whether kubelet has written our token on this container: nobody else was told it."""
    return bool(token) and token in pod.waiting.get(container, "")


def _is_live(key: PodKey, picture: NodeClaims) -> bool:
    pod = picture.pods.get(key)
    return pod is not None and pod.record.live


def _container(
    slot_ids: frozenset[str], listed: Sequence[SlotHolder], pod: PodInfo, *, token: str
) -> str | Rejected:
    record = pod.record
    names_of = [it.container for it in listed]
    if len(set(names_of)) != len(names_of):
        # An old and a new pod of one name: kubelet has not let go of the old one yet.
        return _no(RejectReason.LISTED_TWICE, f"kubelet lists a container of {record.key} twice")
    exact = [it.container for it in listed if it.slot_ids == slot_ids]
    inits = [
        it.name
        for it in record.containers
        if it.kind is ContainerKind.INIT and _amount(it, names.GPU_SLOT) == len(slot_ids)
    ]
    candidates = exact + inits
    if not candidates:
        held = "; ".join(f"{it.container} holds {_ids(it.slot_ids)}" for it in listed)
        return _no(
            RejectReason.PARTLY_HELD, f"nothing in {record.key} holds {_ids(slot_ids)}: {held}"
        )
    assignment = record.assignment or {}
    if len({_cards_of(assignment.get(name, ())) for name in candidates}) > 1:
        told = [name for name in candidates if _tells(pod, name, token)]
        if len(told) == 1:
            return told[0]
        unclear = ", ".join(candidates)
        return _no(
            RejectReason.AMBIGUOUS,
            f"{_ids(slot_ids)} may be of {unclear} in {record.key}, promised different slices; "
            "waiting until kubelet says in the pod's status which it starts",
        )
    return candidates[0]


def _cards_of(slices: Sequence[Slice]) -> frozenset[Slice]:
    return frozenset(slices)


def _promise(
    container: str, slot_ids: frozenset[str], pod: PodInfo, picture: NodeClaims
) -> Claim | Rejected:
    record = pod.record
    whose = f"container {container} of {record.key}"
    if record.node != picture.node:
        text = f"{record.key} is bound to {record.node or 'no node'}, not to {picture.node}"
        return _no(RejectReason.WRONG_NODE, text)
    if picture.owner_uid and picture.owner_uid != record.uid:
        text = (
            f"{_ids(slot_ids)} were the pod's with UID {picture.owner_uid}, and kubelet has not "
            f"handed them out since; {record.key} has UID {record.uid}"
        )
        return _no(RejectReason.OTHER_POD, text)
    if record.problem:
        return _no(RejectReason.UNREADABLE, f"{record.key}: {record.problem}")
    slices = (record.assignment or {}).get(container, ())
    if not slices:
        text = f"{whose} has no cards in {names.ASSIGNMENT}; it was not bound by FracGPU"
        return _no(RejectReason.NOT_ASSIGNED, text)
    if len(slices) != len(slot_ids):
        text = f"{whose} holds {len(slot_ids)} slots and was promised {len(slices)} cards"
        return _no(RejectReason.WRONG_COUNT, text)
    misfit = _size_doubt(container, slices, pod) or _card_doubt(slices, whose, picture)
    if misfit is not None:
        return misfit
    cards = tuple(picture.cards[it.card] for it in slices)
    return Claim(pod=pod, container=container, slices=slices, cards=cards)


def _size_doubt(container: str, slices: Sequence[Slice], pod: PodInfo) -> Rejected | None:
    spec = next((it for it in pod.record.containers if it.name == container), None)
    limit = _amount(spec, names.GPU_MEM) if spec is not None else None
    promised = sum(it.mib for it in slices)
    if limit == promised:
        return None
    text = (
        f"container {container} of {pod.record.key} was promised {promised} MiB, "
        f"its limit {names.GPU_MEM} is {limit if limit is not None else 'absent'}"
    )
    return _no(RejectReason.WRONG_SIZE, text)


def _card_doubt(slices: Sequence[Slice], whose: str, picture: NodeClaims) -> Rejected | None:
    for part in slices:
        card = picture.cards.get(part.card)
        if card is None:
            text = f"{whose} was promised {part.card}, which {picture.node} does not have"
            return _no(RejectReason.NO_SUCH_CARD, text)
        if card.health is not Health.HEALTHY:
            text = f"{whose} was promised {part.card}, unhealthy: {card.health_reason}"
            return _no(RejectReason.UNHEALTHY, text)
    held = held_on(picture.pods.values(), node=picture.node)
    unplaced = _unplaced(picture)
    for part in slices:
        card, allocation = picture.cards[part.card], held[part.card]
        what = f"{whose} was promised {part.mib} MiB of {part.card}, on which the pods of"
        if allocation.mib + sum(it.mib for it in unplaced.values()) > card.capacity_mib:
            text = (
                f"{what} {picture.node} together hold {allocation.mib} of {card.capacity_mib} MiB"
            )
            for pod, most in sorted(unplaced.items()):
                text += f", and {pod} up to {most.mib} more: its {names.ASSIGNMENT} cannot be read"
            return _no(RejectReason.OVER_CAPACITY, text)
        if allocation.slots + sum(it.slots for it in unplaced.values()) > card.slots:
            text = (
                f"{what} {picture.node} together have {allocation.slots} containers of {card.slots}"
            )
            return _no(RejectReason.OVER_SLOTS, text)
    return None


def _unplaced(picture: NodeClaims) -> Mapping[str, CardAllocation]:
    """Give the pods that may be on any card, and the most that each may hold of one."""
    largest_mib = max(card.capacity_mib for card in picture.cards.values())
    found = {}
    for pod in picture.pods.values():
        record = pod.record
        if record.node == picture.node and (most := allocation_of(record).unplaced):
            found[record.key] = replace(most, mib=Mib(min(most.mib, largest_mib)))
    return found


def held_on(pods: Iterable[PodInfo], *, node: str) -> dict[CardUuid, CardAllocation]:
    """Fold what the live pods of *node* were promised of each card."""
    held: dict[CardUuid, CardAllocation] = {}
    for pod in pods:
        record = pod.record
        if record.live and record.node == node and record.assignment is not None:
            for card, allocation in allocations_by_card(
                record.assignment, record.containers
            ).items():
                before = held.get(card, CardAllocation(mib=Mib(0), slots=0))
                held[card] = CardAllocation(
                    mib=Mib(before.mib + allocation.mib),
                    cores=before.cores + allocation.cores,
                    slots=before.slots + allocation.slots,
                )
    return held


def _amount(spec: ContainerSpec, resource: str) -> int | None:
    return whole_amount(spec.limits.get(resource, ""))


def _no(reason: RejectReason, text: str) -> Rejected:
    return Rejected(reason=reason, text=text)


def _ids(slot_ids: Iterable[str]) -> str:
    return ",".join(sorted(slot_ids))
