"""A ResourceQuota, and whether one more pod would exceed it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.k8s.container import ContainerSpec, pod_resource_sum
from fracgpu.k8s.quantity import parse

_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_PODS: Final = ("pods", "count/pods")
# A quota counts these alone if it has the scope. Pods of a ReplicaSet have no deadline, so that
# they are never Terminating. Source: podMatchesScopeFunc in pkg/quota/v1/evaluator/core/pods.go.
_NEVER: Final = "Terminating"
_BEST_EFFORT: Final = "BestEffort"
_NOT_BEST_EFFORT: Final = "NotBestEffort"

Usage = Mapping[str, Fraction]

_UNREADABLE: Final = Fraction(2**63)  # more than any quota has left


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """One ResourceQuota.

    Attributes:
        left: by resource as the quota names it, what may still be used; negative if it is exceeded.
            What cannot be read is left out.
        hard: the limits, as they are written.
        scopes: a pod counts only if it is in each of them.
    """

    namespace: str
    name: str
    left: Usage
    scopes: frozenset[str] = frozenset()
    hard: Mapping[str, str] = field(default_factory=dict)

    def exceeded_by(self, usage: Usage) -> str:
        """Return the resource of which one more pod would use too much; empty if there is none.

        A scope that cannot be told from a pod's containers counts as one that it is in.
        """
        best_effort = not usage.keys() & {"requests.cpu", "requests.memory", *_LIMITS}
        outside = {_NEVER, _NOT_BEST_EFFORT if best_effort else _BEST_EFFORT}
        if self.scopes & outside:
            return ""
        counted = (name for name in sorted({*self.left, *self.hard}) if name in usage)
        return next((n for n in counted if n not in self.left or usage[n] > self.left[n]), "")

    def used_of(self, resource: str) -> Fraction:
        """Return what of a resource is used, which the quota limits readably."""
        return parse(self.hard[resource]) - self.left[resource]


_LIMITS: Final = ("limits.cpu", "limits.memory")


def quota_usage(containers: Sequence[ContainerSpec]) -> Usage:
    """Return what one pod counts in a quota, by every name that a quota may use for it.

    Source: podComputeUsageHelper in pkg/quota/v1/evaluator/core/pods.go.
    """
    usage = {name: Fraction(1) for name in _PODS}
    for resource, amount in _sums(containers, limits=False).items():
        usage[f"requests.{resource}"] = amount
        if resource in _COMPUTE or resource.startswith("hugepages-"):
            usage[resource] = amount
    for resource, amount in _sums(containers, limits=True).items():
        if resource in _COMPUTE:
            usage[f"limits.{resource}"] = amount
    return usage


def _sums(containers: Sequence[ContainerSpec], *, limits: bool) -> dict[str, Fraction]:
    wanted = [
        (part.kind, part.limits if limits else {**part.limits, **part.requests})
        for part in containers
    ]
    names = {name for _, amounts in wanted for name in amounts}
    return {
        name: pod_resource_sum(
            [(kind, _amount(amounts.get(name, "0"))) for kind, amounts in wanted]
        )
        for name in names
    }


def _amount(text: str | int | float) -> Fraction:
    try:
        return parse(text)
    except ValueError:
        return _UNREADABLE


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Requirement(msgspec.Struct, rename="camel"):
    scope_name: str = ""


class _ScopeSelector(msgspec.Struct, rename="camel"):
    match_expressions: list[_Requirement] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    hard: dict[str, str | int | float] | None = None
    scopes: list[str] | None = None
    scope_selector: _ScopeSelector | None = None


class _Status(msgspec.Struct):
    used: dict[str, str | int | float] | None = None


class _Wire(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Wire)


def read_quota(body: bytes) -> ResourceQuota:
    """Parse a ResourceQuota from its JSON.

    Raises:
        WireError: *body* is not one.
    """
    return decode_wire(_read, body, what="resourcequota")


def _read(body: bytes) -> ResourceQuota:
    wire = _decoder.decode(body)
    used, hard = wire.status.used or {}, wire.spec.hard or {}
    left: dict[str, Fraction] = {}
    for name, amount in hard.items():
        with suppress(ValueError):
            left[name] = parse(amount) - parse(used.get(name, 0))
    chosen = wire.spec.scope_selector
    selected = [part.scope_name for part in (chosen.match_expressions if chosen else None) or ()]
    return ResourceQuota(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        left=left,
        scopes=frozenset((*(wire.spec.scopes or ()), *selected)),
        hard={name: str(amount) for name, amount in hard.items()},
    )
