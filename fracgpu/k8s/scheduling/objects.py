"""Pods and nodes as the filters of kube-scheduler see them; only what decides is kept."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.errors import decode_wire
from fracgpu.k8s.node import Node, Taint
from fracgpu.k8s.node_affinity import taints_of
from fracgpu.k8s.pod import Pod
from fracgpu.k8s.resources import node_amounts
from fracgpu.k8s.scheduling.constraints import ANYWHERE, SchedulingConstraints

_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ScheduledPod:
    """A pod on a node, which counts in the filters for other pods. Compared by identity.

    Attributes:
        labels: equal ones are one object, by which pods are grouped.
        terminating: it has a deletion timestamp: it keeps what it holds, but is not spread.
    """

    uid: str
    namespace: str
    node: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    terminating: bool = False
    constraints: SchedulingConstraints = ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingNode:
    """A node.

    Attributes:
        taints: those that keep pods off, NoSchedule and NoExecute.
        unschedulable: it is cordoned.
        allocatable: amounts by resource; see `fracgpu.k8s.resources`.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Namespace(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_namespace_decoder: Final = msgspec.json.Decoder(_Namespace)


def scheduled_pod_of(pod: Pod, constraints: SchedulingConstraints) -> ScheduledPod | None:
    """Return a pod with its constraints, or None if it has no node or has ended."""
    meta = pod.metadata
    if not (pod.spec.node_name and pod.live):
        return None
    return ScheduledPod(
        uid=meta.uid,
        namespace=sys.intern(meta.namespace),
        node=sys.intern(pod.spec.node_name),
        labels=shared_labels(meta.labels),
        terminating=meta.deletion_timestamp is not None,
        constraints=constraints,
    )


def scheduling_node_of(node: Node) -> SchedulingNode:
    """Return what decides of a node."""
    return SchedulingNode(
        name=node.metadata.name,
        labels=node.metadata.labels or _NO_LABELS,
        taints=taints_of(node),
        unschedulable=node.spec.unschedulable,
        allocatable=node_amounts(node.status.allocatable or {}),
    )


def read_namespace_labels(body: bytes) -> Mapping[str, str]:
    """Return the labels of the namespace that *body* holds.

    Raises:
        WireError: *body* is not a namespace.
    """
    namespace = decode_wire(_namespace_decoder.decode, body, what="namespace")
    return namespace.metadata.labels or _NO_LABELS


def shared_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return labels that are the same object for equal labels."""
    return _shared(tuple(sorted(labels.items()))) if labels else _NO_LABELS


@cached(entries=16384)
def _shared(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(items))
