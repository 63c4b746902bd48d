"""A node object decoded: its cards, cordons, heat and allocatable host resources."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fracgpu import names
from fracgpu.cards.annotations import (
    read_cards,
    read_cordons,
    read_foreign,
    read_heat,
    read_isolation,
    read_load_time,
    read_used,
    read_uuids,
)
from fracgpu.cards.card import NodeCards
from fracgpu.errors import WireError
from fracgpu.k8s.node import Node, NodeMetadata, decode_node, is_leaving
from fracgpu.k8s.node_affinity import SOFT_EFFECTS, taints_of
from fracgpu.k8s.resources import node_host
from fracgpu.k8s.scheduling.objects import SchedulingNode, scheduling_node_of

_T = TypeVar("_T")


def read_node(body: bytes) -> NodeCards:
    """Return the node that *body* holds: its cards, cordons and whether it shares them.

    Raises:
        WireError: *body* is not a node.
    """
    return node_cards_of(decode_node(body))


def read_offered_node(body: bytes) -> NodeCards:
    """Return the node that *body* holds, as one that takes pods although it is cordoned.

    Its extender is asked about a cordoned node only by a kube-scheduler whose own filters let the
    pod go there, because it tolerates ``node.kubernetes.io/unschedulable``, as a DaemonSet's pods
    do.

    Raises:
        WireError: *body* is not a node.
    """
    return _offered(decode_node(body))


def _offered(node: Node) -> NodeCards:
    return replace(node_cards_of(node), schedulable=not why_no_pod_starts(node))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """A node: its cards, and all that kube-scheduler reads of it."""

    cards: NodeCards
    scheduling: SchedulingNode


def observe_node(body: bytes) -> ObservedNode:
    """Return the node that *body* holds, decoded once.

    Raises:
        WireError: *body* is not a node.
    """
    node = decode_node(body)
    return ObservedNode(cards=node_cards_of(node), scheduling=scheduling_node_of(node))


def observe_offered_node(body: bytes) -> ObservedNode:
    """Return the node that *body* holds, with its cards as `read_offered_node` says.

    Raises:
        WireError: *body* is not a node.
    """
    node = decode_node(body)
    return ObservedNode(cards=_offered(node), scheduling=scheduling_node_of(node))


def node_cards_of(node: Node) -> NodeCards:
    """Return the cards of a node and whether it shares them.

    Each annotation is read by itself; *unreadable* has the error of each that cannot be read.
    """
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

    return NodeCards(
        node=meta.name,
        cards=read(names.NODE_CARDS, read_cards, ()),
        cordons=read(names.NODE_CORDONS, read_cordons, ()),
        drained=read_uuids(annotations.get(names.NODE_DRAIN, "")),
        shared=labels.get(names.SHARE_LABEL) == "true",
        schedulable=not node.spec.unschedulable and not why_no_pod_starts(node),
        unschedulable=node.spec.unschedulable,
        soft_taints=taints_of(node, effects=SOFT_EFFECTS),
        leaving=is_leaving(node),
        labels=labels,
        heat=read(names.NODE_HEAT, read_heat, {}),
        foreign=read(names.NODE_FOREIGN, read_foreign, {}),
        used=read(names.NODE_USED, read_used, {}),
        load_time=read(names.NODE_LOAD_TIME, read_load_time, None),
        unreadable=unreadable,
        host=node_host(node.status.allocatable or {}),
        identity=annotations.get(names.NODE_IDENTITY, ""),
        isolation=read_isolation(annotations.get(names.ISOLATION, "")),
    )


def closed_by(name: str, annotations: Mapping[str, str]) -> NodeCards:
    """Return a node with nothing but what closes cards in its annotations."""
    closing = {
        key: text
        for key, text in annotations.items()
        if key in (names.NODE_CORDONS, names.NODE_DRAIN)
    }
    return node_cards_of(Node(metadata=NodeMetadata(name=name, annotations=closing)))


def why_no_pod_starts(node: Node) -> str:
    """Return why a pod that comes would not start there, cordoned or not; empty if it would.

    It would fail where the agent says that kubelet does not know it. Where the node goes over to
    the other wiring, a pod that comes would keep it from doing so.
    """
    if not node.ready:
        return f"node {node.metadata.name} is not Ready"
    said = {
        condition.reason
        for condition in node.status.conditions or ()
        if condition.type == names.SHARING_CONDITION and condition.status == "False"
    }
    if names.AGENT_NOT_REGISTERED in said:
        return f"kubelet on node {node.metadata.name} does not know the node agent"
    if names.SWITCHING in said:
        return f"node {node.metadata.name} goes over to the other wiring"
    return ""
