"""The desired labels, annotations, capacity and condition of the node, and the patches to them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from deviceplugin.cards.interface import all_unhealthy
from deviceplugin.node.inventory import Inventory
from fracgpu import names
from fracgpu.cards.annotations import read_cards, write_cards, write_isolation, write_time
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.cards.card_class import model_key
from fracgpu.cards.node_marks import NodeMarks, find_marks, shares
from fracgpu.cards.other_plugins import offered_by_others
from fracgpu.cards.pool_catalogue import PoolCatalogue
from fracgpu.errors import WireError, counted
from fracgpu.k8s.container import pod_resource_sum
from fracgpu.k8s.node import NodeCondition, decode_node
from fracgpu.k8s.pod import Amounts
from fracgpu.k8s.quantity import integer_amount
from fracgpu.request.need import Isolation
from fracgpu.state.allocation import sizes
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib

_LABEL_CHARS: Final = 63
_BY_KERNEL: Final = f"{names.ISOLATION_LABEL_PREFIX}{Isolation.KERNEL.value}"
_OURS: Final = (
    names.CARD_MODEL_LABEL,
    names.CARD_MEMORY_LABEL,
    names.CARD_COUNT_LABEL,
    names.CARD_CLASS_LABEL,
    names.CARD_FAMILY_LABEL,
    names.DRIVER_LABEL,
    *names.ISOLATION_LABELS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The node condition ``FracGPUSharing``: whether we share this node's cards, and why not."""

    shared: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The part of a node object that is ours to write.

    Attributes:
        others: what other plugins offer on the node: resource → amount.
        sharing: our condition, or None where there is none.
        allocatable: what kubelet offers of our resources.
        taints: the keys of the node's taints, in their order.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    sharing: Sharing | None = None
    allocatable: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[str, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether the administrator wants this node's cards to be shared."""
        return shares(self.labels)

    @property
    def marks(self) -> NodeMarks:
        """What the node has of our labels, annotations, resources and condition."""
        return find_marks(
            labels=self.labels,
            annotations=self.annotations,
            capacity=self.capacity,
            conditions=(names.SHARING_CONDITION,) if self.sharing is not None else (),
        )

    @property
    def counted_by(self) -> str:
        """The resources under which other plugins offer the cards, or an empty text."""
        return ", ".join(
            f"{resource} ({amount})" for resource, amount in sorted(self.others.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """Why an agent offers nothing any more.

    Attributes:
        withdrawn: whether the node's capacity is taken back as well: whoever places pods has had
            time to learn that none are to come.
    """

    problem: str
    withdrawn: bool


def read_node_state(body: bytes) -> NodeState:
    """Parse a Node object.

    Raises:
        WireError: *body* is not a node.
    """
    node = decode_node(body)
    ours = [
        condition
        for condition in node.status.conditions or ()
        if condition.type == names.SHARING_CONDITION
    ]
    offered = _as_text(node.status.allocatable)
    return NodeState(
        labels=node.metadata.labels or {},
        annotations=node.metadata.annotations or {},
        capacity=_as_text(node.status.capacity),
        others=offered_by_others(offered),
        sharing=_sharing(ours[0]) if ours else None,
        allocatable={
            resource: amount
            for resource in (names.GPU_MEM, names.GPU_SLOT)
            if (amount := integer_amount(offered.get(resource, "")))
        },
        taints=tuple(taint.key for taint in node.spec.taints or ()),
    )


def _as_text(amounts: Amounts | None) -> Mapping[str, str]:
    return {resource: str(amount) for resource, amount in (amounts or {}).items()}


def _sharing(condition: NodeCondition) -> Sharing:
    return Sharing(
        shared=condition.status == "True", reason=condition.reason, message=condition.message
    )


def wanted_state(inventory: Inventory, *, have: NodeState | None = None) -> NodeState:
    """Return the desired state of a node whose state is *have*.

    On a node whose cards another plugin offers, what we wrote earlier is withdrawn.
    """
    if have is not None and have.others:
        return _withdrawn(inventory, have)
    return _shared_state(inventory)


def _withdrawn(inventory: Inventory, have: NodeState) -> NodeState:
    text = f"another plugin offers {have.counted_by} here; only one plugin can count a node's cards"
    unusable = Inventory(card_list=all_unhealthy(inventory.card_list, reason=text))
    known = names.NODE_CARDS in have.annotations
    return NodeState(
        # Readers of the inventory find no healthy card; readers of the capacity find none left.
        annotations={names.NODE_CARDS: write_cards(unusable.cards)} if known else {},
        capacity=_zeros(have),
        sharing=Sharing(shared=False, reason="CountedByAnotherPlugin", message=text),
    )


def unseen_state(have: NodeState, *, reason: str, problem: str) -> NodeState:
    """Return the desired state of a shared node whose cards cannot be allocated now.

    The inventory keeps the cards, for those who count what pods hold, and marks each of them
    unhealthy. An inventory that cannot be read stays as it is: its readers place nothing there.
    """
    text = have.annotations.get(names.NODE_CARDS, "")
    try:
        listed = read_cards(text)
    except WireError:
        listed = ()
    unusable = tuple(
        replace(card, health=Health.UNHEALTHY, health_reason=problem) for card in listed
    )
    return NodeState(
        labels={label: have.labels[label] for label in have.marks.labels},
        annotations={names.NODE_CARDS: write_cards(unusable)} if unusable else {},
        capacity=_zeros(have),
        sharing=Sharing(shared=False, reason=reason, message=problem),
    )


def held_mib(pods: Iterable[PodInfo]) -> int:
    """Return the MiB that live pods with an assignment request, summed as kubelet sums it."""
    return sum(
        pod_resource_sum(
            [(spec.kind, _requested_mib(spec.limits)) for spec in pod.record.containers]
        )
        for pod in pods
        if pod.record.live and names.ASSIGNMENT in pod.annotations
    )


def _requested_mib(limits: Mapping[str, str]) -> int:
    return integer_amount(limits.get(names.GPU_MEM, "")) or 0


def resized_mib(pods: Iterable[PodInfo]) -> int:
    """Return by how much the pods that were resized hold more than Kubernetes counts for them."""
    found = [pod for pod in pods if pod.record.live and pod.record.resize is not None]
    held = sum(mib for pod in found for mib in sizes(pod.record.assignment or {}).values())
    return held - held_mib(found)


def with_resized(want: NodeState, *, resized_mib: int) -> NodeState:
    """Return *want* with as much memory that Kubernetes finds free as the cards have.

    A pod's request cannot be changed while it runs, so what it holds more or less is taken from
    the node's capacity, or added to it.
    """
    counted = want.capacity.get(names.GPU_MEM)
    if counted is None or int(counted) == 0 or resized_mib == 0:
        return want
    mib = max(0, int(counted) - resized_mib)
    return replace(want, capacity={**want.capacity, names.GPU_MEM: str(mib)})


def keep_held(want: NodeState, *, held_mib: int) -> NodeState:
    """Return *want* with at least as much memory as pods hold.

    A kubelet that restarts admits its running pods once more, and rejects those whose requests
    exceed what is allocatable. Source: kubelet's ``HandlePodAdditions`` and predicate handler.
    """
    counted = want.capacity.get(names.GPU_MEM)
    if counted is None or int(counted) >= held_mib:
        return want
    return replace(want, capacity={**want.capacity, names.GPU_MEM: str(held_mib)})


def with_isolation(want: NodeState, why_not: Mapping[str, str]) -> NodeState:
    """Return *want* saying by what containers are limited on the node's cards.

    Args:
        want: says nothing of it.
        why_not: by mechanism, why it limits none; empty where it does.
    """
    able = [each for each, reason in why_not.items() if not reason]
    labels = {f"{names.ISOLATION_LABEL_PREFIX}{each}": "true" for each in able}
    annotations = {**want.annotations, names.ISOLATION: write_isolation(why_not)}
    return replace(want, labels={**want.labels, **labels}, annotations=annotations)


def as_isolated_before(want: NodeState, have: NodeState) -> NodeState:
    """Return *want* saying of isolation what the node says, while it is not known.

    So an agent that takes the node over does not take away for a moment what its predecessor found.
    """
    kept = {key: have.labels[key] for key in names.ISOLATION_LABELS if key in have.labels}
    return replace(want, labels={**want.labels, **kept})


def with_limits(
    want: NodeState, have: NodeState, overcommit: Callable[[CardUuid], Fraction | None]
) -> NodeState:
    """Return *want* saying of each card what limits may add up to, where all can be limited.

    Args:
        want: says by what containers are limited.
        have: the node as it is.
        overcommit: returns how many times a card's capacity that is; None while it is not known,
            and the same as before.
    """
    inventory = want.annotations.get(names.NODE_CARDS)
    if inventory is None or _BY_KERNEL not in want.labels:
        return want
    before = {card.uuid: card.limits_mib for card in cards_of(have)}
    cards = []
    for card in read_cards(inventory):
        times = overcommit(card.uuid)
        limits_mib = before.get(card.uuid, 0) if times is None else int(card.capacity_mib * times)
        cards.append(replace(card, limits_mib=Mib(limits_mib)))
    return replace(want, annotations={**want.annotations, names.NODE_CARDS: write_cards(cards)})


def cards_of(have: NodeState) -> tuple[Card, ...]:
    """Return the cards that a node says it has; none where that cannot be read."""
    try:
        return read_cards(have.annotations.get(names.NODE_CARDS, ""))
    except WireError:
        return ()


def with_card_class(
    want: NodeState, *, have: NodeState, cards: Sequence[Card], pools: PoolCatalogue
) -> NodeState:
    """Return *want* naming the class that the pool catalogue has for the node's cards.

    Without a catalogue the label stays as it is: whoever makes the pool's nodes may have set it.
    """
    key = names.CARD_CLASS_LABEL
    name = pools.class_of(cards) if pools and cards else have.labels.get(key, "")
    return replace(want, labels={**want.labels, key: name}) if name else want


def without_capacity(want: NodeState, have: NodeState) -> NodeState:
    """Return *want* where a slice says the capacity: two accountants would give a card twice."""
    return replace(want, capacity=_zeros(have))


def counted_mib(have: NodeState) -> int:
    """Return the MiB that a node says it has for limits of pods; 0 where it says none."""
    return integer_amount(have.capacity.get(names.GPU_MEM, "")) or 0


def as_counted_before(want: NodeState, have: NodeState) -> NodeState:
    """Return *want* with the capacity that the node has, which is about to be taken back."""
    counted = {
        key: str(integer_amount(have.capacity[key]) or 0)
        for key in want.capacity
        if key in have.capacity
    }
    return replace(want, capacity=counted)


def without_new_pods(
    want: NodeState, *, problem: str, reason: str = names.AGENT_NOT_REGISTERED
) -> NodeState:
    """Return *want*, saying that the node takes no new pods, and why.

    The capacity stays: a pod that is bound already is still to be admitted.
    """
    if want.sharing is None or not want.sharing.shared:
        return want
    sharing = Sharing(shared=False, reason=reason, message=problem)
    return replace(want, sharing=sharing)


def _zeros(have: NodeState) -> dict[str, str]:
    return {
        resource: "0" for resource in (names.GPU_MEM, names.GPU_COUNT) if resource in have.capacity
    }


def _shared_state(inventory: Inventory) -> NodeState:
    """Return the desired state of a node whose cards we share.

    Memory counts healthy cards only, so that no new pod is bound for an unhealthy one. Labels show
    all cards: one that fails and recovers must not make the node's labels flap.
    """
    cards = inventory.cards
    healthy_mib = sum(card.capacity_mib for card in cards if card.health is Health.HEALTHY)
    return NodeState(
        labels=_labels(cards, driver=inventory.card_list.driver, family=inventory.card_list.family),
        annotations={names.NODE_CARDS: write_cards(cards)},
        capacity={names.GPU_MEM: str(healthy_mib), names.GPU_COUNT: str(len(cards))},
        sharing=_sharing_of(inventory, healthy_mib=healthy_mib),
    )


def _sharing_of(inventory: Inventory, *, healthy_mib: int) -> Sharing:
    notes = [
        f"{skipped.uuid} is left out: {skipped.reason}" for skipped in inventory.card_list.left_out
    ]
    unhealthy = [card for card in inventory.cards if card.health is not Health.HEALTHY]
    notes += [f"{card.uuid} is unhealthy: {card.health_reason}" for card in unhealthy]
    message = "; ".join(
        [f"{counted(len(inventory.cards), 'card')}, {healthy_mib} MiB to share", *notes]
    )
    shared = bool(healthy_mib)
    reason = "CardsShared" if shared else "NoCardToShare"
    return Sharing(shared=shared, reason=reason, message=message)


def _labels(cards: tuple[Card, ...], *, driver: str, family: str) -> dict[str, str]:
    if not cards:
        return {}
    models = Counter(model_key(card.model) for card in cards)
    classes = Counter(card.capacity_mib for card in cards)
    labels = {
        names.CARD_MODEL_LABEL: min(models, key=lambda model: (-models[model], model)),
        names.CARD_MEMORY_LABEL: str(max(classes)),
        names.CARD_COUNT_LABEL: str(len(cards)),
        names.CARD_FAMILY_LABEL: family,
        names.DRIVER_LABEL: driver,
    }
    labels |= {f"{names.CARD_CLASS_LABEL_PREFIX}{mib}": str(n) for mib, n in classes.items()}
    written = {key: label_value(value) for key, value in labels.items()}
    return {key: value for key, value in written.items() if value}


def label_value(text: str) -> str:
    """Return *text* as a valid label value: at most 63 characters of ``A-Za-z0-9._-``."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_CHARS]
    return allowed.strip("._-")


def metadata_patch(*, have: NodeState, want: NodeState) -> dict[str, Any]:
    """Return the merge patch for labels and annotations; empty if they are right already."""
    ours = [
        key for key in have.labels if key in _OURS or key.startswith(names.CARD_CLASS_LABEL_PREFIX)
    ]
    labels: dict[str, str | None] = {key: None for key in ours if key not in want.labels}
    labels |= {key: value for key, value in want.labels.items() if have.labels.get(key) != value}
    annotations = {
        key: value for key, value in want.annotations.items() if have.annotations.get(key) != value
    }
    parts: dict[str, Any] = {}
    if labels:
        parts["labels"] = labels
    if annotations:
        parts["annotations"] = annotations
    return {"metadata": parts} if parts else {}


def status_patch(*, have: NodeState, want: NodeState) -> dict[str, Any]:
    """Return the merge patch for the status subresource; empty if capacity is right already.

    Quantities are compared as numbers, because the API server writes 80000 as ``80k``.
    """
    wrong = {
        resource: amount
        for resource, amount in want.capacity.items()
        if integer_amount(have.capacity.get(resource, "")) != int(amount)
    }
    return {"status": {"capacity": wrong}} if wrong else {}


def startup_taint_patch(
    have: NodeState, want: NodeState, *, published: bool | None = None
) -> list[dict[str, Any]]:
    """Return the JSON patch that takes the start-up taint off; empty while the node is not ready.

    It is once the node says what cards it has, and kubelet offers their memory and their slots, or
    the slice is *published* that stands for both. Other taints may come and go meanwhile, so each
    removal tests what it removes.
    """
    found = [at for at, key in enumerate(have.taints) if key == names.STARTUP_TAINT]
    stands = (
        bool(found)
        and want.sharing is not None
        and want.sharing.shared
        and not metadata_patch(have=have, want=want)
        and (_is_counted(have, want) if published is None else published)
    )
    if not stands:
        return []
    return [
        edit
        for at in reversed(found)
        for edit in (
            {"op": "test", "path": f"/spec/taints/{at}/key", "value": names.STARTUP_TAINT},
            {"op": "remove", "path": f"/spec/taints/{at}"},
        )
    ]


def _is_counted(have: NodeState, want: NodeState) -> bool:
    """Report whether kubelet offers the cards' memory and slots."""
    counted_mib = have.allocatable.get(names.GPU_MEM, 0)
    return (
        counted_mib >= int(want.capacity[names.GPU_MEM])
        and have.allocatable.get(names.GPU_SLOT, 0) > 0
    )


def condition_patch(*, have: NodeState, want: NodeState, now: datetime) -> dict[str, Any]:
    """Return the strategic merge patch for our condition; empty if it is right already."""
    sharing = want.sharing
    if sharing is None or sharing == have.sharing:
        return {}
    stamp = write_time(now)
    condition = {
        "type": names.SHARING_CONDITION,
        "status": "True" if sharing.shared else "False",
        "reason": sharing.reason,
        "message": sharing.message,
        "lastHeartbeatTime": stamp,
    }
    if have.sharing is None or have.sharing.shared is not sharing.shared:
        condition["lastTransitionTime"] = stamp
    conditions: Sequence[dict[str, str]] = [condition]
    return {"status": {"conditions": conditions}}
