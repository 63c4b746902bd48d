"""How a pod's replacement comes to be: beside the pod, or after its eviction."""

from typing import Final

from fracgpu.request.need import Rebalance
from fracgpu.state.move_object import MoveMode
from fracgpu.state.pod_info import PodInfo

HASH_LABEL: Final = "pod-template-hash"


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
