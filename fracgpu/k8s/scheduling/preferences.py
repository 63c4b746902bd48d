"""Whether a pod prefers some nodes to others, beside which nodes it requires."""

from functools import lru_cache
from typing import Final

import msgspec

from fracgpu.errors import UNREADABLE
from fracgpu.k8s.pod import PodSpec

_RANKS: Final = "ScheduleAnyway"


class _Something(msgspec.Struct, frozen=True):
    """A term of which only the presence matters."""


class _Preferred(msgspec.Struct, rename="camel"):
    preferred_during_scheduling_ignored_during_execution: list[_Something] | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _Preferred | None = None
    pod_affinity: _Preferred | None = None
    pod_anti_affinity: _Preferred | None = None


class _Constraint(msgspec.Struct, rename="camel"):
    when_unsatisfiable: str = ""


_affinity: Final = msgspec.json.Decoder(_Affinity | None)
_constraints: Final = msgspec.json.Decoder(list[_Constraint] | None)


def has_preferences(spec: PodSpec) -> bool:
    """Report whether a pod states what only ranks nodes: soft affinity, or soft spreading.

    Soft are ``preferredDuringSchedulingIgnoredDuringExecution`` and ``ScheduleAnyway``. What cannot
    be read may be one.
    """
    affinity, spread = bytes(spec.affinity), bytes(spec.topology_spread_constraints)
    return bool(affinity and _prefers(affinity)) or bool(spread and _ranks(spread))


@lru_cache(maxsize=1024)
def _prefers(body: bytes) -> bool:
    try:
        found = _affinity.decode(body)
    except UNREADABLE:
        return True
    if found is None:
        return False
    kinds = (found.node_affinity, found.pod_affinity, found.pod_anti_affinity)
    return any(
        kind is not None and bool(kind.preferred_during_scheduling_ignored_during_execution)
        for kind in kinds
    )


@lru_cache(maxsize=1024)
def _ranks(body: bytes) -> bool:
    try:
        found = _constraints.decode(body)
    except UNREADABLE:
        return True
    return any(one.when_unsatisfiable == _RANKS for one in found or ())
