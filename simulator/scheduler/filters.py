"""Whether a node could take a pod: the filter plugins of kube-scheduler that matter here.

Source of rules and wording: k8s.io/kubernetes pkg/scheduler/framework/plugins (nodeunschedulable,
tainttoleration, nodeaffinity, noderesources).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.k8s.quantity import parse
from fracgpu.k8s.selectors import Requirement
from simulator import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simulator.objects import Json

_PODS: Final = "pods"
_MILLI: Final = 1000
_UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
_REPELLING: Final = ("NoSchedule", "NoExecute")

Amounts = dict[str, int]
"""Resource → thousandths of its unit, so that ``500m`` of a CPU is a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """One node, and what the pods on it request."""

    node: Json
    taken: Amounts

    @property
    def name(self) -> str:
        name: str = self.node["metadata"]["name"]
        return name


def requests_of(pod: Json) -> Amounts:
    """Return a pod's requests at their peak, with init containers and sidecars as in Kubernetes."""
    spec = pod.get("spec") or {}
    by_resource: dict[str, list[tuple[ContainerKind, int]]] = {}
    for container in spec.get("initContainers") or ():
        always = container.get("restartPolicy") == "Always"
        kind = ContainerKind.SIDECAR if always else ContainerKind.INIT
        _add(by_resource, container, kind)
    for container in spec.get("containers") or ():
        _add(by_resource, container, ContainerKind.APP)
    total = {resource: pod_resource_sum(amounts) for resource, amounts in by_resource.items()}
    return {**total, _PODS: _MILLI}


def _add(
    by_resource: dict[str, list[tuple[ContainerKind, int]]], container: Json, kind: ContainerKind
) -> None:
    resources = container.get("resources") or {}
    # The API server copies limits to missing requests.
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for resource, quantity in wanted.items():
        by_resource.setdefault(resource, []).append((kind, _milli(quantity)))


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of amounts by resource."""
    total: Amounts = {}
    for one in amounts:
        for resource, amount in one.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def misfits(pod: Json, room: NodeUsage) -> tuple[str, ...]:
    """Return the reasons why a node does not fit, in kube-scheduler's words; empty if it fits."""
    spec = pod.get("spec") or {}
    taint = _untolerated(room.node, spec.get("tolerations") or ())
    if taint:
        return (taint,)
    if not _selected(spec, room.node):
        return ("node(s) didn't match Pod's node affinity/selector",)
    return tuple(_insufficient(requests_of(pod), room))


def _insufficient(wanted: Amounts, room: NodeUsage) -> Iterable[str]:
    allocatable = (room.node.get("status") or {}).get("allocatable") or {}
    for resource, amount in wanted.items():
        there = _milli(allocatable[resource]) if resource in allocatable else 0
        if amount and amount > there - room.taken.get(resource, 0):
            yield "Too many pods" if resource == _PODS else f"Insufficient {resource}"


def _untolerated(node: Json, tolerations: Sequence[Json]) -> str:
    spec = node.get("spec") or {}
    closed = {"key": _UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}
    if spec.get("unschedulable") and not _tolerates(tolerations, closed):
        return "node(s) were unschedulable"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _REPELLING and not _tolerates(tolerations, taint):
            key, value = taint.get("key", ""), taint.get("value", "")
            return f"node(s) had untolerated taint {{{key}: {value}}}"
    return ""


def _tolerates(tolerations: Sequence[Json], taint: Json) -> bool:
    return any(_tolerates_one(toleration, taint) for toleration in tolerations)


def _tolerates_one(toleration: Json, taint: Json) -> bool:
    effect, key = toleration.get("effect", ""), toleration.get("key", "")
    if effect not in ("", taint.get("effect")):
        return False
    exists: bool = toleration.get("operator", "Equal") == "Exists"
    if not key:
        return exists
    if key != taint.get("key"):
        return False
    return exists or bool(toleration.get("value", "") == taint.get("value", ""))


def _selected(spec: Json, node: Json) -> bool:
    labels = objects.labels(node)
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    # Terms are ORed, the expressions of one are ANDed; an empty term matches nothing.
    return any(_term_holds(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term_holds(term: Json, node: Json) -> bool:
    by_label = term.get("matchExpressions") or []
    by_field = term.get("matchFields") or []
    fields = {"metadata.name": node["metadata"]["name"]}
    return bool(by_label or by_field) and (
        all(_holds(expression, objects.labels(node)) for expression in by_label)
        and all(_holds(expression, fields) for expression in by_field)
    )


def _holds(expression: Json, found: Mapping[str, str]) -> bool:
    requirement = Requirement(
        key=expression["key"],
        operator=expression["operator"],
        values=tuple(expression.get("values") or ()),
    )
    return requirement.matches(found)


def _milli(quantity: Any) -> int:
    return int(parse(quantity) * _MILLI)
