"""A bound pod with the few fields that the ledger needs; equal values are shared between pods.

A cluster has up to 100,000 pods, and most of a pod's JSON does not matter to what cards hold.
It is why this module has structs of its own beside those of `fracgpu.k8s.pod`: fields that are not
needed are never decoded, names are interned, and equal labels, host resources
and allocations are one object each: this keeps the scheduler's memory below 1 GiB. None of it is
the garbage collector's (``gc=False``), which it would stop everything to look at: a tree of facts
has no cycles.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.caching import cached
from fracgpu.cards.card import CardUuid
from fracgpu.errors import RequestError, WireError, decode_wire
from fracgpu.k8s.container import ContainerKind, ContainerSpec, init_container_kind
from fracgpu.k8s.pod import decode_pod, has_ended
from fracgpu.k8s.resources import (
    NO_HOST_RESOURCES,
    RESIZES,
    HostResources,
    pod_host,
    pod_requests,
    requests_of,
)
from fracgpu.request.language import parse_models
from fracgpu.state.allocation import CardAllocation, allocations_by_card, read_assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.resize import is_answered, read_resize
from fracgpu.state.snapshot import PodAllocation, allocation_of
from fracgpu.units import Mib

_RESIZES: Final = f'"{RESIZES}'.encode()  # of very few pods the status is decoded

_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_AMOUNTS: Final[Mapping[str, str]] = MappingProxyType({})


class BoundPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that has a node.

    Attributes:
        live: not Succeeded or Failed.
        terminating: it has a deletion timestamp; it holds what it holds until it is gone.
        host: what it requests of its node besides cards.
        started: when kubelet acknowledged it (``status.startTime``, RFC 3339); empty before.
        allocation: what it holds of cards; nothing once it has ended.
        models: globs of the card models that it accepts; empty where it accepts any.
        gang: its annotation ``fracgpu.io/gang``; empty without one.
        problem: why its assignment cannot be read; else empty. It then holds the most it can.
        asks_resize: it asks for another size, which is neither granted nor refused yet.
    """

    namespace: str
    name: str
    live: bool = True
    terminating: bool = False
    priority: int = 0
    started: str = ""
    labels: Mapping[str, str] = _NO_LABELS
    host: HostResources = NO_HOST_RESOURCES
    allocation: PodAllocation
    models: tuple[str, ...] = ()
    gang: str = ""
    problem: str = ""
    asks_resize: bool = False

    @property
    def in_gang(self) -> bool:
        """Whether it was placed with other pods."""
        return bool(self.gang)

    @property
    def uid(self) -> str:
        return self.allocation.pod_uid

    @property
    def node(self) -> str:
        return self.allocation.node


class _Annotations(msgspec.Struct, gc=False):
    assignment: str | None = msgspec.field(name="fracgpu.io/assignment", default=None)
    model: str = msgspec.field(name="fracgpu.io/model", default="")
    resize: str | None = msgspec.field(name="fracgpu.io/resize", default=None)
    resized: str | None = msgspec.field(name="fracgpu.io/resized", default=None)
    applied: str | None = msgspec.field(name="fracgpu.io/applied", default=None)
    move: str = msgspec.field(name="fracgpu.io/move", default="")
    gang: str = msgspec.field(name="fracgpu.io/gang", default="")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    annotations: _Annotations | None = None
    labels: dict[str, str] | None = None


class _Amounts(msgspec.Struct, frozen=True, gc=False):
    cpu: str | int | float = ""
    memory: str | int | float = ""


class _Resources(msgspec.Struct, frozen=True):
    limits: _Amounts | None = None
    requests: _Amounts | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    restart_policy: str | None = None
    resources: _Resources | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    overhead: _Amounts | None = None
    resources: _Resources | None = None


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    start_time: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Pod)


def decode_bound_pod(body: bytes) -> BoundPod | None:
    """Return the pod that *body* holds, or None if it has no node yet.

    Raises:
        WireError: *body* is not a pod.
    """
    pod = decode_wire(_decoder.decode, body, what="pod")
    meta, spec = pod.metadata, pod.spec
    if not spec.node_name:
        return None
    live = not has_ended(pod.status.phase)
    containers, host = _shared_containers(
        spec.init_containers or (),
        spec.containers or (),
        spec.overhead,
        spec.resources.requests if spec.resources else None,
    )
    if _RESIZES in body:
        host = pod_host(requests_of(decode_pod(body)))
    uid, node = meta.uid, sys.intern(spec.node_name)
    problem = ""
    holds = PodAllocation(pod_uid=uid, node=node, by_card={})
    if live:
        try:
            holds = PodAllocation(
                pod_uid=uid,
                node=node,
                by_card=_card_allocations(meta, containers),
                move=meta.annotations.move if meta.annotations else "",
            )
        except WireError as error:
            # The limits then bound what it may hold; they were not decoded above.
            holds, problem = allocation_of(decode_pod_info(body).record), str(error)
    return BoundPod(
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        live=live,
        terminating=meta.deletion_timestamp is not None,
        priority=spec.priority or 0,
        started=pod.status.start_time,
        labels=_shared_labels(tuple(sorted(meta.labels.items()))) if meta.labels else _NO_LABELS,
        host=host if live else NO_HOST_RESOURCES,
        allocation=holds,
        models=_shared_models(meta.annotations.model) if meta.annotations else (),
        gang=sys.intern(meta.annotations.gang) if meta.annotations else "",
        problem=problem,
        asks_resize=live
        and meta.annotations is not None
        and _asks_resize(meta.annotations.resize, meta.annotations.resized),
    )


def bound_pod_of(pod: PodInfo) -> BoundPod | None:
    """Return a pod that was decoded whole as `decode_bound_pod` does; None if it has no node."""
    record = pod.record
    if not record.node:
        return None
    allocation = allocation_of(record)
    node = sys.intern(record.node)
    return BoundPod(
        namespace=sys.intern(record.namespace),
        name=record.name,
        live=record.live,
        terminating=record.terminating,
        priority=pod.priority,
        started=f"{pod.started_at:%Y-%m-%dT%H:%M:%SZ}" if pod.started_at else "",
        labels=_shared_labels(tuple(sorted(pod.labels.items()))) if pod.labels else _NO_LABELS,
        host=pod.host if record.live else NO_HOST_RESOURCES,
        allocation=msgspec.structs.replace(
            allocation, node=node, by_card=_shared_cards(allocation.by_card)
        ),
        models=_shared_models(pod.annotations.get(names.MODEL, "")),
        gang=sys.intern(pod.annotations.get(names.GANG, "")),
        problem=record.problem if record.live else "",
        asks_resize=record.live
        and _asks_resize(pod.annotations.get(names.RESIZE), pod.annotations.get(names.RESIZED)),
    )


def _asks_resize(asked: str | None, resized: str | None) -> bool:
    return asked is not None and not is_answered(asked, resized)


def _card_allocations(
    meta: _Meta, containers: tuple[ContainerSpec, ...]
) -> Mapping[CardUuid, CardAllocation]:
    notes = meta.annotations
    if notes is None or notes.assignment is None:
        return {}
    assignment = read_assignment(notes.assignment)
    if notes.resized is not None:
        assignment = read_resize(assignment, resized=notes.resized, applied=notes.applied).counts
    return _shared_cards(allocations_by_card(assignment, containers))


def _shared_cards(
    found: Mapping[CardUuid, CardAllocation],
) -> Mapping[CardUuid, CardAllocation]:
    return {
        CardUuid(sys.intern(uuid)): _shared_allocation(
            held.mib, held.cores, held.slots, held.borrow_mib
        )
        for uuid, held in found.items()
    }


@cached(entries=8192)
def _shared_containers(
    init_containers: tuple[_Container, ...],
    containers: tuple[_Container, ...],
    overhead: _Amounts | None,
    pod_level: _Amounts | None,
) -> tuple[tuple[ContainerSpec, ...], HostResources]:
    """Return a pod's containers, and what they request of its node besides cards."""
    found = (
        *(_spec(one, init_container_kind(one.restart_policy)) for one in init_containers),
        *(_spec(one, ContainerKind.APP) for one in containers),
    )
    requests = pod_requests(found, overhead=_amounts(overhead), pod_level=_amounts(pod_level))
    return found, pod_host(requests)


def _spec(container: _Container, kind: ContainerKind) -> ContainerSpec:
    resources = container.resources
    return ContainerSpec(
        name=container.name,
        kind=kind,
        limits=_amounts(resources.limits if resources else None),
        requests=_amounts(resources.requests if resources else None),
    )


def _amounts(found: _Amounts | None) -> Mapping[str, str]:
    if found is None:
        return _NO_AMOUNTS
    both = {"cpu": str(found.cpu), "memory": str(found.memory)}
    return {name: text for name, text in both.items() if text}


@cached(entries=8192)
def _shared_labels(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(items))


@cached(entries=1024)
def _shared_models(text: str) -> tuple[str, ...]:
    try:
        return parse_models({names.MODEL: text}) if text else ()
    except RequestError:  # it was admitted and is bound, so it accepted its card
        return ()


@lru_cache(maxsize=1024)
def _shared_allocation(mib: Mib, cores: int, slots: int, borrow_mib: Mib) -> CardAllocation:
    return CardAllocation(mib=mib, cores=cores, slots=slots, borrow_mib=borrow_mib)
