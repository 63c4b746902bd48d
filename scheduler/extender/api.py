"""The JSON of the scheduler extender protocol of kube-scheduler 1.30 to 1.36.

Source: k8s.io/kube-scheduler/extender/v1 types.go and pkg/scheduler/extender.go. The Go types carry
no JSON tags, so the names on the wire are Go's: ``NodeNames``, ``PodUID``. Types are checked
strictly; a field we do not know is skipped, because a newer kube-scheduler may send one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.errors import UNREADABLE, WireError
from fracgpu.placement.preemption import Victims
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from scheduler.cache.event_handlers import AnyPod

_NONE_REFUSED: Final[Mapping[str, str]] = MappingProxyType({})


class ProtocolError(Exception):
    """The body is not what kube-scheduler sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArgs:
    """A filter or prioritize request.

    Attributes:
        node_names: the candidates, in the caller's order.
        nodes: the candidates' raw JSON by name where the caller sends whole nodes
            (``nodeCacheCapable: false``), else None.
    """

    pod: PodInfo
    node_names: tuple[str, ...]
    nodes: Mapping[str, msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """The nodes on which the pod fits, and why it does not fit on the others.

    Attributes:
        passed: a subset of the request's names, in its order.
        failed: reasons by node that preemption might resolve.
        unresolvable: reasons by node that it cannot.
        error: why the request cannot be answered at all; else empty.
        best: returns the one of *passed* that kube-scheduler should take; None if the pod requests
            no card.
    """

    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=lambda: _NONE_REFUSED)
    unresolvable: Mapping[str, str] = field(default_factory=lambda: _NONE_REFUSED)
    error: str = ""
    best: Callable[[], str | None] = field(default=lambda: None, compare=False, repr=False)

    @property
    def refused(self) -> int:
        """On how many nodes the pod does not fit."""
        return len(self.failed) + len(self.unresolvable)

    @property
    def reason(self) -> str:
        """The reason of one of these nodes; empty if there is none."""
        reasons = (*self.failed.values(), *self.unresolvable.values())
        return reasons[0] if reasons else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingArgs:
    """A bind request."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def pod(self) -> str:
        """``namespace/name``, for messages."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionArgs:
    """A preempt request.

    Attributes:
        proposed: by node, the UIDs of the victims that kube-scheduler proposes.
    """

    pod: PodInfo
    proposed: Mapping[str, frozenset[str]]


class _NodeMeta(msgspec.Struct):
    name: str


class _Node(msgspec.Struct):
    metadata: _NodeMeta


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _WireArgs(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class _WireResult(msgspec.Struct, rename="pascal"):
    nodes: _NodeList | None
    node_names: list[str] | None
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct, rename="pascal"):
    pods: list[_MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PodMeta(msgspec.Struct):
    uid: str = ""


class _PodIdentity(msgspec.Struct, rename="camel"):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _IdentifiedPod(msgspec.Struct):
    metadata: _PodIdentity = msgspec.field(default_factory=_PodIdentity)


class _VictimPod(msgspec.Struct):
    metadata: _PodMeta


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[_VictimPod] | None = None


class _WirePreemptionArgs(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None


class _WirePreemptionResult(msgspec.Struct, rename="pascal"):
    node_name_to_meta_victims: dict[str, _MetaVictims]


class _WireBindingArgs(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


class _HostPriority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


class _WireBindingResult(msgspec.Struct, rename="pascal"):
    error: str


_args_decoder: Final = msgspec.json.Decoder(_WireArgs)
_identity_decoder: Final = msgspec.json.Decoder(_IdentifiedPod)
_preemption_decoder: Final = msgspec.json.Decoder(_WirePreemptionArgs)
_binding_decoder: Final = msgspec.json.Decoder(_WireBindingArgs)
_node_decoder: Final = msgspec.json.Decoder(_Node)
_encoder: Final = msgspec.json.Encoder()


def read_args(
    body: bytes, *, find: Callable[[str, str], PodInfo | None] = lambda *_: None
) -> ExtenderArgs:
    """Parse the body of a filter or prioritize request.

    Args:
        body: of the request.
        find: returns the informer's copy of a pod by namespace and name, or None. One of the same
            UID and resourceVersion is the same pod, and the one in *body* is then not decoded.

    Raises:
        ProtocolError: the body is not an ExtenderArgs with a pod and one list of nodes.
    """
    try:
        wire = _args_decoder.decode(body)
        pod = _known_pod(wire.pod, find) or decode_pod_info(bytes(wire.pod))
    except (*UNREADABLE, WireError) as error:
        raise ProtocolError(f"not an ExtenderArgs: {error}") from error
    if not pod.record.name or not pod.record.namespace:
        raise ProtocolError("not an ExtenderArgs: its Pod has no name or no namespace")
    if (wire.nodes is None) == (wire.node_names is None):
        raise ProtocolError("not an ExtenderArgs: want either Nodes or NodeNames")
    if wire.nodes is None:
        return ExtenderArgs(pod=pod, node_names=tuple(wire.node_names or ()))
    nodes = _nodes_by_name(wire.nodes.items or ())
    return ExtenderArgs(pod=pod, node_names=tuple(nodes), nodes=nodes)


def pending_only(find: Callable[[str, str], AnyPod | None]) -> Callable[[str, str], PodInfo | None]:
    """Return *find*, restricted to pods that have no node yet."""

    def found(namespace: str, name: str) -> PodInfo | None:
        pod = find(namespace, name)
        return pod if isinstance(pod, PodInfo) else None

    return found


def _known_pod(body: msgspec.Raw, find: Callable[[str, str], PodInfo | None]) -> PodInfo | None:
    sent = _identity_decoder.decode(body).metadata
    known = find(sent.namespace, sent.name)
    if known is None or not sent.uid or not sent.resource_version:
        return None
    record = known.record
    is_same = (record.uid, record.resource_version) == (sent.uid, sent.resource_version)
    return known if is_same else None


def write_filter_result(result: FilterResult, args: ExtenderArgs) -> bytes:
    """Return the answer to a filter request, in names or whole nodes as the request was."""
    nodes: _NodeList | None = None
    node_names: list[str] | None = None
    if not result.error:
        if args.nodes is None:
            node_names = list(result.passed)
        else:
            nodes = _NodeList(items=[args.nodes[name] for name in result.passed])
    return _encoder.encode(
        _WireResult(
            nodes=nodes,
            node_names=node_names,
            failed_nodes=dict(result.failed),
            failed_and_unresolvable_nodes=dict(result.unresolvable),
            error=result.error,
        )
    )


def write_priorities(names: Sequence[str], scores: NDArray[np.int64]) -> bytes:
    """Return the answer to a prioritize request: a HostPriorityList, one score per node."""
    scored = zip(names, scores.tolist(), strict=True)
    return _encoder.encode([_HostPriority(name, score) for name, score in scored])


def read_preemption_args(body: bytes) -> PreemptionArgs:
    """Parse the body of a preempt request, with victims as UIDs or as whole pods.

    Raises:
        ProtocolError: the body is not an ExtenderPreemptionArgs.
    """
    try:
        wire = _preemption_decoder.decode(body)
        pod = decode_pod_info(bytes(wire.pod))
    except (*UNREADABLE, WireError) as error:
        raise ProtocolError(f"not an ExtenderPreemptionArgs: {error}") from error
    proposed: dict[str, frozenset[str]] = {}
    for node, victims in (wire.node_name_to_victims or {}).items():
        proposed[node] = frozenset(pod.metadata.uid for pod in victims.pods or ())
    for node, meta in (wire.node_name_to_meta_victims or {}).items():
        proposed[node] = frozenset(pod.uid for pod in meta.pods or ())
    return PreemptionArgs(pod=pod, proposed=proposed)


def write_preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Return the answer to a preempt request: the nodes where it helps, with their victims."""
    return _encoder.encode(
        _WirePreemptionResult(
            node_name_to_meta_victims={
                node: _MetaVictims(
                    pods=[_MetaPod(uid=uid) for uid in chosen.uids],
                    num_pdb_violations=chosen.violations,
                )
                for node, chosen in victims.items()
            }
        )
    )


def read_binding_args(body: bytes) -> BindingArgs:
    """Parse the body of a bind request.

    Raises:
        ProtocolError: the body is not an ExtenderBindingArgs with all four fields.
    """
    try:
        wire = _binding_decoder.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not an ExtenderBindingArgs: {error}") from error
    args = BindingArgs(
        namespace=wire.pod_namespace, name=wire.pod_name, uid=wire.pod_uid, node=wire.node
    )
    if not (args.namespace and args.name and args.uid and args.node):
        raise ProtocolError("not an ExtenderBindingArgs: a field is empty")
    return args


def write_binding_result(error: str) -> bytes:
    """Return the answer to a bind request; an empty *error* means the pod is bound."""
    return _encoder.encode(_WireBindingResult(error=error))


def _nodes_by_name(items: Sequence[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    try:
        return {_node_decoder.decode(raw).metadata.name: raw for raw in items}
    except UNREADABLE as error:
        raise ProtocolError(f"not an ExtenderArgs: one of its Nodes: {error}") from error
