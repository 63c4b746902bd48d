"""What the node object should say of its cards, and the patches that make it say so."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from deviceplugin.claims import whole_amount
from deviceplugin.inventory import Stock
from fracgpu import names
from fracgpu.card import Card, Health, model_key
from fracgpu.wire import write_cards

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


class _Status(msgspec.Struct):
    capacity: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The part of a node object that is ours to write."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)


def read_node_state(body: bytes) -> NodeState:
    """Read a node.

    Raises:
        ValueError: it is not a node.
    """
    node = _decoder.decode(body)
    return NodeState(
        labels=node.metadata.labels or {},
        annotations=node.metadata.annotations or {},
        capacity=node.status.capacity or {},
    )


def wanted_state(stock: Stock) -> NodeState:
    """Say what the node should carry.

    Memory counts healthy cards only, so that nothing new is sent to a sick one. Labels tell what is
    built in: a card that falls ill and recovers must not make the node's labels flap.
    """
    cards = stock.cards
    healthy_mib = sum(it.capacity_mib for it in cards if it.health is Health.HEALTHY)
    return NodeState(
        labels=_labels(cards, driver=stock.survey.driver, family=stock.survey.family),
        annotations={names.NODE_CARDS: write_cards(cards)},
        capacity={names.GPU_MEM: str(healthy_mib), names.GPU_COUNT: str(len(cards))},
    )


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
