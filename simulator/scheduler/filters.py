"""Whether a node could take a pod: the filter plugins of kube-scheduler that matter here.

The rules are those of `fracgpu.k8s`, which tests compare with a real kube-scheduler. Source of the
wording: k8s.io/kubernetes pkg/scheduler/framework/plugins (nodeunschedulable, tainttoleration,
nodeaffinity, noderesources).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.resources import PODS
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints, scheduling_constraints_of
from fracgpu.k8s.scheduling.node_filters import CORDONED
from fracgpu.k8s.scheduling.objects import SchedulingNode, scheduling_node_of
from simulator.objects import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from simulator.objects import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """One node, and what the pods on it request: resource → amount, as in `requests_of`."""

    node: SchedulingNode
    taken: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.node.name


def constraints_of(pod: Json) -> SchedulingConstraints:
    """Return what a pod requests, selects and tolerates."""
    return scheduling_constraints_of(decode_pod(encode(pod)))


def usage_of(node: Json, pods: Iterable[Json]) -> NodeUsage:
    """Return a node, and what *pods*, which are on it, request at their peak."""
    taken: dict[str, int] = {}
    for pod in pods:
        for resource, amount in (*constraints_of(pod).requests, (PODS, 1)):
            taken[resource] = taken.get(resource, 0) + amount
    return NodeUsage(node=scheduling_node_of(decode_node(encode(node))), taken=taken)


def misfits(pod: SchedulingConstraints, room: NodeUsage) -> tuple[str, ...]:
    """Return the reasons why a node does not fit, in kube-scheduler's words; empty if it fits."""
    node, rules = room.node, pod.node
    if node.unschedulable and not rules.tolerates((CORDONED,)):
        return ("node(s) were unschedulable",)
    for taint in node.taints:
        if not rules.tolerates((taint,)):
            return (f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",)
    if not rules.selects(node.labels, node=node.name):
        return ("node(s) didn't match Pod's node affinity/selector",)
    return tuple(_insufficient(pod, room))


def _insufficient(pod: SchedulingConstraints, room: NodeUsage) -> Iterable[str]:
    for resource, amount in (*pod.requests, (PODS, 1)):
        if amount > room.node.allocatable.get(resource, 0) - room.taken.get(resource, 0):
            yield "Too many pods" if resource == PODS else f"Insufficient {resource}"
