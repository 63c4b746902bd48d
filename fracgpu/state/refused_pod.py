"""Pods of ours that kubelet would not admit, and whether another one has taken their place.

kubelet fails such a pod for good, before any of its containers is made. Its controller makes
another one; the failed one stays until somebody deletes it.
"""

from collections.abc import Iterable
from typing import Final

from fracgpu import names
from fracgpu.state.pod_info import PodInfo

# Sources: kubelet's lifecycle.UnexpectedAdmissionError (a device plugin away, or no device left),
# and InsufficientResourcePrefix with the resource that the node has no longer.
REJECTION_REASONS: Final = (
    "UnexpectedAdmissionError",
    f"OutOf{names.GPU_SLOT}",
    f"OutOf{names.GPU_MEM}",
)
# Their controllers replace every pod that has failed; a Job only until its limit, and of others
# nothing is known.
_REPLACE_ALWAYS: Final = ("ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet")


def was_rejected(pod: PodInfo) -> bool:
    """Tell whether kubelet refused a pod that we had bound, and whose end is not asked for yet."""
    return (
        pod.phase == "Failed"
        and pod.reason in REJECTION_REASONS
        and not pod.record.terminating
        and pod.record.assignment is not None
        and any(names.GPU_SLOT in it.limits for it in pod.record.containers)
        # One that had run, and that a restarted kubelet would not have back, may have left logs to
        # read. Of such a pod kubelet writes a status without containers (``rejectPod``), so what we
        # noted of their start counts as well.
        and not pod.container_ids
        and names.WIRED not in pod.annotations
    )


def is_replaced(pod: PodInfo, others: Iterable[PodInfo]) -> bool:
    """Tell whether a refused pod's owner has put another one in its place; never for a bare pod.

    Args:
        pod: it was refused.
        others: the pods of its namespace.
    """
    if pod.owner is None:
        return False
    kind, _, owner_uid = pod.owner
    if kind in _REPLACE_ALWAYS:
        return True
    since = pod.started_at
    return since is not None and any(
        it.owner is not None
        and it.owner[2] == owner_uid
        and it.created_at is not None
        and it.created_at > since
        for it in others
    )
