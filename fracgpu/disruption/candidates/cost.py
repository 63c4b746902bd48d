"""What it costs to disturb a pod, in points (per cent of one card)."""

from typing import Final

from fracgpu.disruption.candidates.move_mode import mode_of
from fracgpu.state.move_object import MoveMode
from fracgpu.state.pod_info import PodInfo

_BASE: Final = 5.0
_NO_SURGE: Final = 10.0  # the old pod ends before the new one is ready
_PRIORITY: Final = 5.0
_PER_10_GIB: Final = 1.0  # reloading takes as long as the memory is large


def disruption_cost(pod: PodInfo, *, mib: int) -> float:
    """Return what it costs to move a pod that holds *mib* of a card."""
    return (
        _BASE
        + (_NO_SURGE if mode_of(pod) is MoveMode.EVICT else 0.0)
        + (_PRIORITY if pod.priority > 0 else 0.0)
        + _PER_10_GIB * mib / (10 * 1024)
    )
