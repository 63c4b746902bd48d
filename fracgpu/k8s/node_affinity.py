"""Which nodes a pod may be scheduled to, by the rules of kube-scheduler.

It evaluates nodeSelector, required node affinity and tolerations. Constraints that it cannot
evaluate are named, so that callers can leave such a pod alone rather than guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.errors import WireError

_EXCLUDING_EFFECTS: Final = ("NoSchedule", "NoExecute")


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Required(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: list[_Term] = msgspec.field(default_factory=list)


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Required | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Toleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class _Something(msgspec.Struct, frozen=True):
    """An object of which only the presence matters."""


class _EmptyDir(msgspec.Struct, frozen=True):
    medium: str = ""


class _Volume(msgspec.Struct, frozen=True, rename="camel"):
    persistent_volume_claim: _Something | None = None
    ephemeral: _Something | None = None
    host_path: _Something | None = None
    empty_dir: _EmptyDir | None = None


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    host_port: int = 0


class _Container(msgspec.Struct, frozen=True):
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    volumes: list[_Volume] | None = None
    containers: list[_Container] | None = None
    resource_claims: list[_Something] | None = None


class _Pod(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Taint(msgspec.Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    taints: list[_Taint] | None = None


class _Node(msgspec.Struct, frozen=True):
    spec: _NodeSpec = _NodeSpec()


_pod_decoder: Final = msgspec.json.Decoder(_Pod)
_node_decoder: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node; pods that do not tolerate it are not scheduled there."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConstraints:
    """Which nodes one pod may be scheduled to.

    Attributes:
        allows: reports whether a node with these labels and taints will do.
        unjudged: constraints of the pod's spec that are not evaluated here.
        keeps_local_data: the pod has an ``emptyDir`` on disk, which an eviction deletes.
    """

    allows: Callable[[Mapping[str, str], Sequence[Taint]], bool]
    unjudged: tuple[str, ...] = ()
    keeps_local_data: bool = False


def scheduling_constraints_of(body: bytes) -> SchedulingConstraints:
    """Parse the scheduling constraints of a pod from its JSON.

    Raises:
        WireError: *body* is not a pod.
    """
    try:
        spec = _pod_decoder.decode(body).spec
    except msgspec.MsgspecError as error:
        raise WireError(what="pod", message=str(error)) from error
    selector = spec.node_selector or {}
    terms = _terms(spec)
    tolerations = spec.tolerations or []

    def allows(labels: Mapping[str, str], taints: Sequence[Taint]) -> bool:
        return (
            all(labels.get(key) == value for key, value in selector.items())
            and (terms is None or any(_term_holds(term, labels) for term in terms))
            and all(_tolerated(taint, tolerations) for taint in taints)
        )

    volumes = spec.volumes or ()
    return SchedulingConstraints(
        allows=allows,
        unjudged=_unjudged(spec, terms or ()),
        keeps_local_data=any(
            volume.empty_dir is not None and volume.empty_dir.medium != "Memory"
            for volume in volumes
        ),
    )


def taints_of(body: bytes) -> tuple[Taint, ...]:
    """Return the NoSchedule and NoExecute taints of a node, from its JSON.

    Raises:
        WireError: *body* is not a node.
    """
    try:
        taints = _node_decoder.decode(body).spec.taints or ()
    except msgspec.MsgspecError as error:
        raise WireError(what="node", message=str(error)) from error
    return tuple(
        Taint(key=taint.key, value=taint.value, effect=taint.effect)
        for taint in taints
        if taint.effect in _EXCLUDING_EFFECTS
    )


def _terms(spec: _PodSpec) -> Sequence[_Term] | None:
    affinity = spec.affinity
    if (
        affinity is None
        or affinity.node_affinity is None
        or affinity.node_affinity.required is None
    ):
        return None
    return affinity.node_affinity.required.node_selector_terms


def _unjudged(spec: _PodSpec, terms: Sequence[_Term]) -> tuple[str, ...]:
    volumes = spec.volumes or ()
    ports = [port for container in spec.containers or () for port in container.ports or ()]
    found = {
        "persistentVolumeClaim": any(
            volume.persistent_volume_claim is not None for volume in volumes
        ),
        "ephemeral volume": any(volume.ephemeral is not None for volume in volumes),
        "hostPath": any(volume.host_path is not None for volume in volumes),
        "hostPort": any(port.host_port for port in ports),
        "resourceClaims": bool(spec.resource_claims),
        "node affinity by field": any(term.match_fields for term in terms),
    }
    return tuple(name for name, present in found.items() if present)


def _term_holds(term: _Term, labels: Mapping[str, str]) -> bool:
    # A term without expressions matches nothing: kubernetes.io, "Assigning Pods to Nodes".
    expressions = term.match_expressions or ()
    return bool(expressions) and all(
        _holds(expression, labels.get(expression.key)) for expression in expressions
    )


def _holds(wanted: _Expression, value: str | None) -> bool:
    values = wanted.values or []
    match wanted.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(wanted.operator, value, values)
        case _:
            return False  # an operator of a later release: assume that the node does not match


def _compares(operator: str, value: str | None, values: Sequence[str]) -> bool:
    try:
        have, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if operator == "Gt" else have < limit


def _tolerated(taint: Taint, tolerations: Sequence[_Toleration]) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and (
            toleration.key == taint.key or (not toleration.key and toleration.operator == "Exists")
        )
        and (toleration.operator == "Exists" or toleration.value == taint.value)
        for toleration in tolerations
    )
