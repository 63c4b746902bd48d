"""The pod to explain, read from its JSON."""

from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.state.cluster_state import ExplainedPod
from fracgpu.state.pod_info import pod_info_of


def read_subject(body: bytes) -> ExplainedPod:
    """Return what an explanation needs of the pod that *body* holds.

    Raises:
        WireError: *body* is not a pod.
    """
    pod = decode_pod(body)
    return ExplainedPod(
        info=pod_info_of(pod),
        scheduling_constraints=scheduling_constraints_of(pod),
        gates=tuple(gate.name for gate in pod.spec.scheduling_gates or ()),
        unschedulable_message=next(
            (
                condition.message
                for condition in pod.status.conditions or ()
                if condition.type == "PodScheduled" and condition.status == "False"
            ),
            "",
        ),
    )
