"""What the node object should say of its cards, and the patches that make it say so."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from deviceplugin.node.inventory import Inventory, all_unhealthy
from fracgpu import names
from fracgpu.cards.annotations import read_cards, write_cards
from fracgpu.cards.card import Card, Health
from fracgpu.cards.card_class import model_key
from fracgpu.cards.node_marks import NodeMarks, find_marks, shares
from fracgpu.errors import WireError
from fracgpu.k8s.container import pod_resource_sum
from fracgpu.k8s.quantity import whole_amount
from fracgpu.state.pod_info import PodInfo

_LABEL_CHARS: Final = 63
_OURS: Final = (
    names.CARD_MODEL_LABEL,
    names.CARD_MEMORY_LABEL,
    names.CARD_COUNT_LABEL,
    names.CARD_FAMILY_LABEL,
    names.DRIVER_LABEL,
)


class _Meta(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Node)


# Resources under which other plugins count the cards that we would share.
_OTHERS: Final = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/vgpu",
    "aliyun.com/gpu-",
    "tencent.com/vcuda-",
    "elasticgpu.io/",
    "volcano.sh/gpu-",
    "volcano.sh/vgpu-",
    "koordinator.sh/gpu",
    "k8s.amazonaws.com/vgpu",
    "tensor-fusion.ai/",
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
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    sharing: Sharing | None = None

    @property
    def shares(self) -> bool:
        """Whether the administrator wants this node's cards to be shared."""
        return shares(self.labels)

    @property
    def marks(self) -> NodeMarks:
        """What of ours stands on it."""
        return find_marks(
            labels=self.labels,
            annotations=self.annotations,
            capacity=self.capacity,
            conditions=(names.SHARING_CONDITION,) if self.sharing is not None else (),
        )

    @property
    def counted_by(self) -> str:
        """Name the resource under which somebody else counts the cards, or an empty text."""
        return ", ".join(f"{it} ({amount})" for it, amount in sorted(self.others.items()))


def read_node_state(body: bytes) -> NodeState:
    """Read a node.

    Raises:
        ValueError: it is not a node.
    """
    node = _decoder.decode(body)
    ours = [it for it in node.status.conditions or () if it.type == names.SHARING_CONDITION]
    return NodeState(
        labels=node.metadata.labels or {},
        annotations=node.metadata.annotations or {},
        capacity=node.status.capacity or {},
        others=_other_counts(node.status.allocatable or {}),
        sharing=_sharing(ours[0]) if ours else None,
    )


def _other_counts(amounts: Mapping[str, str]) -> dict[str, int]:
    """Find what others offer; a plugin that has left stays in the node's status with 0."""
    counts = {it: whole_amount(amounts[it]) or 0 for it in amounts if it.startswith(_OTHERS)}
    return {it: amount for it, amount in counts.items() if amount > 0}


def _sharing(condition: _Condition) -> Sharing:
    return Sharing(
        shared=condition.status == "True", reason=condition.reason, message=condition.message
    )


def wanted_state(inventory: Inventory, *, have: NodeState | None = None) -> NodeState:
    """Say what the node should carry that carries *have* now.

    A node that another plugin counts is left alone: what we wrote there earlier is taken back.
    """
    if have is not None and have.others:
        return _left_alone(inventory, have)
    return _shared_state(inventory)


def _left_alone(stock: Inventory, have: NodeState) -> NodeState:
    text = f"{have.counted_by} of another plugin is allocatable here; a node has one accountant"
    nobody = Inventory(card_list=all_unhealthy(stock.card_list, reason=text))
    known = names.NODE_CARDS in have.annotations
    return NodeState(
        # Whoever reads the inventory finds no card to use; whoever reads capacity finds none left.
        annotations={names.NODE_CARDS: write_cards(nobody.cards)} if known else {},
        capacity=_zeros(have),
        sharing=Sharing(shared=False, reason="CountedByAnotherPlugin", message=text),
    )


def unseen_state(have: NodeState, *, reason: str, problem: str) -> NodeState:
    """Say what a node of ours carries whose cards nobody can hand out, whatever it carries now.

    The inventory keeps the cards, so that whoever counts what pods hold still has them, and says of
    each that it takes nothing new. One that cannot be read stays: its readers close the node.
    """
    text = have.annotations.get(names.NODE_CARDS, "")
    try:
        known = read_cards(text)
    except WireError:
        known = ()
    nobody = tuple(replace(it, health=Health.UNHEALTHY, health_reason=problem) for it in known)
    return NodeState(
        labels={it: have.labels[it] for it in have.marks.labels},
        annotations={names.NODE_CARDS: write_cards(nobody)} if nobody else {},
        capacity=_zeros(have),
        sharing=Sharing(shared=False, reason=reason, message=problem),
    )


def held_mib(pods: Iterable[PodInfo]) -> int:
    """Sum what the live pods with an assignment request, as kube-scheduler and kubelet sum it."""
    return sum(
        pod_resource_sum([(it.kind, _requested_mib(it.limits)) for it in pod.record.containers])
        for pod in pods
        if pod.record.live and names.ASSIGNMENT in pod.annotations
    )


def _requested_mib(limits: Mapping[str, str]) -> int:
    return whole_amount(limits.get(names.GPU_MEM, "")) or 0


def keep_held(want: NodeState, *, held_mib: int) -> NodeState:
    """Raise the memory that *want* counts to what pods hold: nothing is free, and nothing less.

    A kubelet that is restarted admits its running pods once more, and ends those whose requests are
    above what is allocatable. Source: kubelet's ``HandlePodAdditions`` and predicate handler.
    """
    stated = want.capacity.get(names.GPU_MEM)
    if stated is None or int(stated) >= held_mib:
        return want
    return replace(want, capacity={**want.capacity, names.GPU_MEM: str(held_mib)})


def _zeros(have: NodeState) -> dict[str, str]:
    return {it: "0" for it in (names.GPU_MEM, names.GPU_COUNT) if it in have.capacity}


def _shared_state(inventory: Inventory) -> NodeState:
    """Say what a node of ours carries.

    Memory counts healthy cards only, so that nothing new is sent to a sick one. Labels tell what is
    built in: a card that falls ill and recovers must not make the node's labels flap.
    """
    cards = inventory.cards
    healthy_mib = sum(it.capacity_mib for it in cards if it.health is Health.HEALTHY)
    return NodeState(
        labels=_labels(cards, driver=inventory.card_list.driver, family=inventory.card_list.family),
        annotations={names.NODE_CARDS: write_cards(cards)},
        capacity={names.GPU_MEM: str(healthy_mib), names.GPU_COUNT: str(len(cards))},
        sharing=_verdict(inventory, healthy_mib=healthy_mib),
    )


def _verdict(inventory: Inventory, *, healthy_mib: int) -> Sharing:
    notes = [f"{it.uuid} is left out: {it.reason}" for it in inventory.card_list.left_out]
    sick = [it for it in inventory.cards if it.health is not Health.HEALTHY]
    notes += [f"{it.uuid} is unhealthy: {it.health_reason}" for it in sick]
    message = "; ".join([f"{len(inventory.cards)} cards, {healthy_mib} MiB to share", *notes])
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
    """Write *text* as Kubernetes allows it in a label: at most 63 of ``A-Za-z0-9._-``."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_CHARS]
    return allowed.strip("._-")


def metadata_patch(*, have: NodeState, want: NodeState) -> dict[str, Any]:
    """Give the merge patch for labels and annotation; empty when they are right already."""
    ours = [
        key for key in have.labels if key in _OURS or key.startswith(names.CARD_CLASS_LABEL_PREFIX)
    ]
    labels: dict[str, str | None] = {key: None for key in ours if key not in want.labels}
    labels |= {key: it for key, it in want.labels.items() if have.labels.get(key) != it}
    annotations = {
        key: it for key, it in want.annotations.items() if have.annotations.get(key) != it
    }
    parts: dict[str, Any] = {}
    if labels:
        parts["labels"] = labels
    if annotations:
        parts["annotations"] = annotations
    return {"metadata": parts} if parts else {}


def status_patch(*, have: NodeState, want: NodeState) -> dict[str, Any]:
    """Give the merge patch for the status subresource; empty when capacity is right already.

    Quantities are compared as numbers, because the API server writes 80000 as ``80k``.
    """
    wrong = {
        resource: amount
        for resource, amount in want.capacity.items()
        if whole_amount(have.capacity.get(resource, "")) != int(amount)
    }
    return {"status": {"capacity": wrong}} if wrong else {}


def condition_patch(*, have: NodeState, want: NodeState, now: datetime) -> dict[str, Any]:
    """Give the strategic merge patch for our condition; empty when it stands there already."""
    sharing = want.sharing
    if sharing is None or sharing == have.sharing:
        return {}
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
