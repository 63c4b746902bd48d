"""How a pod's replacement comes to be: beside the pod, or after its eviction.

A pod is released from its ReplicaSet by another value of the label by which that selects it.
"""

from typing import Final

from fracgpu.request.need import Rebalance
from fracgpu.state.move_object import MoveMode
from fracgpu.state.pod_info import PodInfo

# A Deployment's ReplicaSet selects its pods by it.
HASH_LABEL: Final = "pod-template-hash"
RELEASED_SUFFIX: Final = ".moved"  # of the label's value, while the pod is released
_LONGEST_LABEL: Final = 63


def mode_of(pod: PodInfo) -> MoveMode:
    """Return how a pod would be moved, if it may be moved at all.

    A surge changes the label by which a Deployment's ReplicaSet selects the pod. Every other
    controller makes a replacement only once the pod is gone.
    """
    by_replicaset = pod.owner is not None and pod.owner[0] == "ReplicaSet"
    selected_by_hash = bool(pod.labels.get(HASH_LABEL))
    if by_replicaset and selected_by_hash and pod.rebalance is not Rebalance.EVICT:
        return MoveMode.SURGE
    return MoveMode.EVICT


def released_value(hash_value: str) -> str:
    """Return what the label becomes, so that no ReplicaSet selects the pod any more."""
    return f"{hash_value[: _LONGEST_LABEL - len(RELEASED_SUFFIX)]}{RELEASED_SUFFIX}"


def original_value(label: str) -> str:
    """Return what the label was before :func:`released_value` changed it."""
    return label.removesuffix(RELEASED_SUFFIX)
