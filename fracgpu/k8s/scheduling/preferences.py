"""Whether a pod prefers some nodes to others, beside which nodes it requires."""

from typing import Final

from fracgpu.errors import UNREADABLE
from fracgpu.k8s.affinity import read_affinity
from fracgpu.k8s.pod import PodSpec
from fracgpu.k8s.scheduling.terms import decode_spread

_RANKS: Final = "ScheduleAnyway"


def has_preferences(spec: PodSpec) -> bool:
    """Report whether a pod states what only ranks nodes: soft affinity, or soft spreading.

    Soft are ``preferredDuringSchedulingIgnoredDuringExecution`` and ``ScheduleAnyway``. What cannot
    be read may be one.
    """
    try:
        affinity = read_affinity(bytes(spec.affinity))
        spread = decode_spread(bytes(spec.topology_spread_constraints))
    except UNREADABLE:
        return True
    return affinity.prefers or any(one.when_unsatisfiable == _RANKS for one in spread)
