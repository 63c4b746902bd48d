"""Finds the container that holds a set of slot ids and its cards; anything unclear is rejected."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.quantity import whole_amount
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
        pods: the pods of this node, and those that PodResources names, wherever they are now.
        cards: this node's cards as they are now.
        token: what kubelet writes into the status of the container that it wants to start, where
            an earlier start of these ids was rejected with it; else empty.
        owner_uid: the pod last verified to hold these ids, if they were not allocated since.
        elsewhere: UIDs of pods that are proven not to want this start.
    """

    node: str
    cards: Mapping[CardUuid, Card]
    pods: Mapping[PodKey, PodInfo] = field(default_factory=dict)
    token: str = ""
    owner_uid: str = ""
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The container that may start, its pod, and the cards assigned to it.

    Attributes:
        shared: other live pods hold some of the same ids, and so use the same device name.
    """

    pod: PodInfo
    container: str
    slices: tuple[Slice, ...]
    cards: tuple[Card, ...]
    shared: bool = False


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
    """Why a container may not start; *text* names pods and cards, and reaches the pod's events."""

    reason: RejectReason
    text: str

    @property
    def askable(self) -> bool:
        """Whether it would be clear if kubelet said which container it wants to start."""
        return self.reason in (RejectReason.AMBIGUOUS, RejectReason.UNLISTED)


def resolve(
    slot_ids: frozenset[str], holders: Sequence[SlotHolder], node_claims: NodeClaims
) -> Claim | Rejected:
    """Return the one container that *slot_ids* were allocated to, with its cards, or why not.

    =====================================  ==============================================
    kubelet lists as holder                result
    =====================================  ==============================================
    nobody, or only ended or unknown pods  the init container whose status carries our token;
                                           without one, UNLISTED if an init container of a
                                           live pod here wants as many slots, else NOBODY
    containers of several live or unknown  as below for the one pod that is not proven to be
                                           elsewhere; SEVERAL_PODS if there is not exactly one
    one container, with exactly these ids  that container, unless an init container of the
                                           pod could be meant and is assigned other cards:
                                           then the one that carries our token, else AMBIGUOUS
    only other sets that share an id       the init container that passes them on, if there is
                                           exactly one with as many slots, or by the token
    =====================================  ==============================================

    Ended pods are passed over because a kubelet without kubernetes PR 132028 still lists them. One
    that the API server does not know was deleted by force, and may start until kubelet drops it:
    beside a live pod it counts as a second. Plain init containers are never listed: kubelet passes
    their ids on to app containers, or keeps them where no app container wants any. An unlisted one
    is never inferred, not even where only one could be meant: kubelet may know a deleted pod.
    """
    live = [
        holder
        for holder in holders
        if holder.slot_ids & slot_ids and _is_live(holder.key, node_claims)
    ]
    keys = sorted({holder.key for holder in live})
    if not keys:
        unlisted = _unlisted(slot_ids, node_claims)
        if unlisted:
            return _claim_by_token(unlisted, slot_ids, node_claims)
        others = sorted(
            {f"{holder.namespace}/{holder.pod}" for holder in holders if holder.slot_ids & slot_ids}
        )
        dead = f"; kubelet lists {', '.join(others)}, ended or unknown" if others else ""
        return _rejected(RejectReason.NOBODY, f"no live pod holds {_ids(slot_ids)}{dead}")
    unknown = sorted(
        {holder.key for holder in holders if holder.slot_ids & slot_ids} - node_claims.pods.keys()
    )
    shared = len(keys) + len(unknown) > 1
    if shared:
        elsewhere = node_claims.elsewhere
        callers = [key for key in keys if node_claims.pods[key].record.uid not in elsewhere]
        if len(callers) != 1 or unknown:
            gone = f", though the API server does not know {_keys(unknown)}" if unknown else ""
            pods = f"{_keys((*keys, *unknown))}{gone} (kubernetes PR 137534)"
            text = f"kubelet has given {_ids(slot_ids)} to {pods}; waiting until it is clear which "
            return _rejected(RejectReason.SEVERAL_PODS, text + "of them wants to start")
        # Who was verified before says nothing: the others hold the ids just as well.
        keys, node_claims = callers, replace(node_claims, owner_uid="")
    pod = node_claims.pods[keys[0]]
    listed = [holder for holder in holders if holder.key == keys[0]]
    container = _container(slot_ids, listed, pod, token=node_claims.token)
    if isinstance(container, Rejected):
        return container
    claim = _claim_of(container, slot_ids, pod, node_claims)
    return replace(claim, shared=shared) if isinstance(claim, Claim) else claim


def pods_elsewhere(
    slot_ids: frozenset[str],
    holders: Sequence[SlotHolder],
    pods: Mapping[PodKey, PodInfo],
    *,
    running: Collection[tuple[str, str]],
    token: str,
) -> frozenset[str]:
    """Return the UIDs of the holders of *slot_ids* that cannot want the start in flight.

    Kubelet starts the containers of a pod one after another, in the one worker of that pod, which
    waits for our answer (``pkg/kubelet/pod_workers.go``). So the start in flight is not a pod's

    - whose container with these ids runs: kubelet starts it only once it has ended;
    - of which another start was rejected meanwhile, as its status shows by *token*.

    None of them is about to read the CDI device of these ids, either.

    Args:
        slot_ids: what the start in flight names.
        holders: kubelet's list, read while it was in flight.
        pods: the pods by namespace and name.
        running: the pod UID and name of each container that ran while this start was in flight.
        token: what starts of these ids were rejected with while this one was in flight; known to
            nobody before.
    """
    found = set()
    for key in {holder.key for holder in holders if holder.slot_ids & slot_ids} & pods.keys():
        pod, listed = pods[key], [holder for holder in holders if holder.key == key]
        if _listed_twice(listed):  # what is known is of the new pod, and the old one may start
            continue
        with_ids = [holder.container for holder in listed if holder.slot_ids & slot_ids]
        if all((pod.record.uid, name) in running for name in with_ids) or any(
            token in text for text in pod.waiting.values()
        ):
            found.add(pod.record.uid)
    return frozenset(found)


def _listed_twice(listed: Sequence[SlotHolder]) -> bool:
    """Report whether kubelet lists an old and a new pod of one name: both are there yet."""
    return len({holder.container for holder in listed}) != len(listed)


def _keys(keys: Iterable[PodKey]) -> str:
    return " and ".join("/".join(key) for key in keys)


def _unlisted(slot_ids: frozenset[str], node_claims: NodeClaims) -> list[tuple[PodInfo, str]]:
    """Return the plain init containers of this node that want as many slots and might start."""
    return [
        (pod, spec.name)
        for _, pod in sorted(node_claims.pods.items())
        if pod.record.live and not pod.record.terminating and pod.record.node == node_claims.node
        for spec in pod.record.containers
        if spec.kind is ContainerKind.INIT and _amount(spec, names.GPU_SLOT) == len(slot_ids)
    ]


def _claim_by_token(
    unlisted: Sequence[tuple[PodInfo, str]], slot_ids: frozenset[str], node_claims: NodeClaims
) -> Claim | Rejected:
    carriers = [
        (pod, name) for pod, name in unlisted if _carries_token(pod, name, node_claims.token)
    ]
    if len(carriers) == 1:
        ((pod, container),) = carriers
        return _claim_of(container, slot_ids, pod, node_claims)
    return _rejected(
        RejectReason.UNLISTED,
        f"kubelet lists no container that holds {_ids(slot_ids)}, and it never lists init "
        "containers; waiting until kubelet names the starting container in the pod's status",
    )


def _carries_token(pod: PodInfo, container: str, token: str) -> bool:
    """Report whether kubelet wrote our token on this container; nobody else knows the token."""
    return bool(token) and token in pod.waiting.get(container, "")


def _is_live(key: PodKey, node_claims: NodeClaims) -> bool:
    pod = node_claims.pods.get(key)
    return pod is not None and pod.record.live


def _container(
    slot_ids: frozenset[str], listed: Sequence[SlotHolder], pod: PodInfo, *, token: str
) -> str | Rejected:
    record = pod.record
    if _listed_twice(listed):
        return _rejected(
            RejectReason.LISTED_TWICE, f"kubelet lists a container of {record.key} twice"
        )
    exact = [holder.container for holder in listed if holder.slot_ids == slot_ids]
    inits = [
        spec.name
        for spec in record.containers
        if spec.kind is ContainerKind.INIT and _amount(spec, names.GPU_SLOT) == len(slot_ids)
    ]
    candidates = exact + inits
    if not candidates:
        held = "; ".join(f"{holder.container} holds {_ids(holder.slot_ids)}" for holder in listed)
        return _rejected(
            RejectReason.PARTLY_HELD, f"nothing in {record.key} holds {_ids(slot_ids)}: {held}"
        )
    assignment = record.assignment or {}
    if len({_cards_of(assignment.get(name, ())) for name in candidates}) > 1:
        carriers = [name for name in candidates if _carries_token(pod, name, token)]
        if len(carriers) == 1:
            return carriers[0]
        unclear = ", ".join(candidates)
        return _rejected(
            RejectReason.AMBIGUOUS,
            f"{_ids(slot_ids)} may belong to {unclear} in {record.key}, which are assigned "
            "different slices; waiting until kubelet names the starting container in the pod's "
            "status",
        )
    return candidates[0]


def _cards_of(slices: Sequence[Slice]) -> frozenset[Slice]:
    return frozenset(slices)


def _claim_of(
    container: str, slot_ids: frozenset[str], pod: PodInfo, node_claims: NodeClaims
) -> Claim | Rejected:
    record = pod.record
    whose = f"container {container} of {record.key}"
    if record.node != node_claims.node:
        text = f"{record.key} is bound to {record.node or 'no node'}, not to {node_claims.node}"
        return _rejected(RejectReason.WRONG_NODE, text)
    if node_claims.owner_uid and node_claims.owner_uid != record.uid:
        text = (
            f"{_ids(slot_ids)} belong to the pod with UID {node_claims.owner_uid}, and kubelet has "
            f"not allocated them since; {record.key} has UID {record.uid}"
        )
        return _rejected(RejectReason.OTHER_POD, text)
    if record.problem:
        return _rejected(RejectReason.UNREADABLE, f"{record.key}: {record.problem}")
    slices = (record.assignment or {}).get(container, ())
    if not slices:
        text = f"{whose} has no cards in {names.ASSIGNMENT}; it was not bound by FracGPU"
        return _rejected(RejectReason.NOT_ASSIGNED, text)
    if len(slices) != len(slot_ids):
        text = f"{whose} holds {len(slot_ids)} slots and is assigned {len(slices)} cards"
        return _rejected(RejectReason.WRONG_COUNT, text)
    rejected = _check_size(container, slices, pod) or _check_cards(slices, whose, node_claims)
    if rejected is not None:
        return rejected
    cards = tuple(node_claims.cards[part.card] for part in slices)
    return Claim(pod=pod, container=container, slices=slices, cards=cards)


def _check_size(container: str, slices: Sequence[Slice], pod: PodInfo) -> Rejected | None:
    spec = next((spec for spec in pod.record.containers if spec.name == container), None)
    limit = _amount(spec, names.GPU_MEM) if spec is not None else None
    assigned_mib = sum(part.mib for part in slices)
    if limit == assigned_mib:
        return None
    text = (
        f"container {container} of {pod.record.key} is assigned {assigned_mib} MiB, "
        f"but its limit {names.GPU_MEM} is {limit if limit is not None else 'absent'}"
    )
    return _rejected(RejectReason.WRONG_SIZE, text)


def _check_cards(slices: Sequence[Slice], whose: str, node_claims: NodeClaims) -> Rejected | None:
    for part in slices:
        card = node_claims.cards.get(part.card)
        if card is None:
            text = f"{whose} is assigned {part.card}, which {node_claims.node} does not have"
            return _rejected(RejectReason.NO_SUCH_CARD, text)
        if card.health is not Health.HEALTHY:
            text = f"{whose} is assigned {part.card}, which is unhealthy: {card.health_reason}"
            return _rejected(RejectReason.UNHEALTHY, text)
    held = held_on(node_claims.pods.values(), node=node_claims.node)
    unplaced = _unplaced(node_claims)
    for part in slices:
        card, total = node_claims.cards[part.card], held[part.card]
        what = f"{whose} is assigned {part.mib} MiB of {part.card}, on which the pods of"
        if total.mib + sum(allocation.mib for allocation in unplaced.values()) > card.capacity_mib:
            text = f"{what} {node_claims.node} together hold {total.mib} of {card.capacity_mib} MiB"
            for pod, most in sorted(unplaced.items()):
                text += f", and {pod} up to {most.mib} more: its {names.ASSIGNMENT} cannot be read"
            return _rejected(RejectReason.OVER_CAPACITY, text)
        if total.slots + sum(allocation.slots for allocation in unplaced.values()) > card.slots:
            what = f"{what} {node_claims.node} together have"
            text = f"{what} {total.slots} containers of {card.slots}"
            return _rejected(RejectReason.OVER_SLOTS, text)
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


def _amount(spec: ContainerSpec, resource: str) -> int | None:
    return whole_amount(spec.limits.get(resource, ""))


def _rejected(reason: RejectReason, text: str) -> Rejected:
    return Rejected(reason=reason, text=text)


def _ids(slot_ids: Iterable[str]) -> str:
    return ",".join(sorted(slot_ids))
