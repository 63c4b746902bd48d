"""Pods with shares that kubelet rejected at admission, and whether they have been replaced.

kubelet fails such a pod for good, before any of its containers is created. Its controller creates
another one; the failed one stays until somebody deletes it.
"""

from collections.abc import Iterable
from typing import Final

from fracgpu import names
from fracgpu.state.pod_info import PodInfo

# Sources: kubelet's lifecycle.UnexpectedAdmissionError (a device plugin away, or no device left),
# and InsufficientResourcePrefix with the resource that the node no longer has.
REJECTION_REASONS: Final = (
    "UnexpectedAdmissionError",
    f"OutOf{names.GPU_SLOT}",
    f"OutOf{names.GPU_MEM}",
)
# Their controllers replace every failed pod; a Job does so only up to its backoffLimit, and of
# other kinds nothing is known.
_REPLACE_ALWAYS: Final = ("ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet")


def was_rejected(pod: PodInfo) -> bool:
    """Report whether kubelet rejected a pod that we had bound and that is not being deleted yet."""
    return (
        pod.phase == "Failed"
        and pod.reason in REJECTION_REASONS
        and not pod.record.terminating
        and pod.record.assignment is not None
        and any(names.GPU_SLOT in container.limits for container in pod.record.containers)
        # A pod that had run, and that a restarted kubelet rejects, may have logs worth keeping.
        # kubelet then writes a status without containers (``rejectPod``), so the annotation that
        # we wrote when they started counts as well.
        and not pod.container_ids
        and names.WIRED not in pod.annotations
    )


def is_replaced(pod: PodInfo, others: Iterable[PodInfo]) -> bool:
    """Report whether a rejected pod's owner has replaced it; never true for a bare pod.

    Args:
        pod: the rejected pod.
        others: the pods of its namespace.
    """
    if pod.owner is None:
        return False
    kind, _, owner_uid = pod.owner
    if kind in _REPLACE_ALWAYS:
        return True
    since = pod.started_at
    return since is not None and any(
        other.owner is not None
        and other.owner[2] == owner_uid
        and other.created_at is not None
        and other.created_at > since
        for other in others
    )
