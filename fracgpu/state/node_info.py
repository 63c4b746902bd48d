"""A node object decoded: its cards, cordons, heat and allocatable host resources."""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from fracgpu import names
from fracgpu.cards.annotations import (
    read_cards,
    read_cordons,
    read_foreign,
    read_heat,
    read_load_time,
)
from fracgpu.cards.card import NodeCards
from fracgpu.errors import WireError
from fracgpu.k8s.pod import UNREADABLE
from fracgpu.k8s.resources import node_allocatable

_T = TypeVar("_T")


# What we read of Kubernetes objects; unknown fields are skipped unread.
class _Meta(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False


class _NodeStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None
    allocatable: dict[str, str | int | float] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


_node_decoder: Final = msgspec.json.Decoder(_Node)


def read_node(body: bytes) -> NodeCards:
    """Return the node that *body* holds: its cards, cordons and whether it shares them.

    Each annotation is read by itself; *unreadable* has the error of each that cannot be read.

    Raises:
        WireError: *body* is not a node.
    """
    try:
        node = _node_decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(what="node", message=str(error)) from error
    meta = node.metadata
    labels = meta.labels or {}
    annotations = meta.annotations or {}
    unreadable: dict[str, str] = {}

    def read(name: str, reader: Callable[[str], _T], missing: _T) -> _T:
        text = annotations.get(name)
        if text is None:
            return missing
        if not text:
            unreadable[name] = f"{name} is empty; want JSON, or no annotation"
            return missing
        try:
            return reader(text)
        except WireError as error:
            unreadable[name] = str(error)
            return missing

    conditions = {condition.type: condition.status for condition in node.status.conditions or ()}
    return NodeCards(
        node=meta.name,
        cards=read(names.NODE_CARDS, read_cards, ()),
        cordons=read(names.NODE_CORDONS, read_cordons, ()),
        shared=labels.get(names.SHARE_LABEL) == "true",
        schedulable=not node.spec.unschedulable and conditions.get("Ready", "True") == "True",
        labels=labels,
        heat=read(names.NODE_HEAT, read_heat, {}),
        foreign=read(names.NODE_FOREIGN, read_foreign, {}),
        load_time=read(names.NODE_LOAD_TIME, read_load_time, None),
        unreadable=unreadable,
        host=node_allocatable(node.status.allocatable or {}),
    )
