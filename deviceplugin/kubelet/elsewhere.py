"""Which of the pods that hold slots are proven not to be in the middle of a start."""

from collections.abc import Mapping, Sequence

from deviceplugin.claims import PodKey, RuntimeContainers, SlotHolder
from deviceplugin.kubelet.resolution import inits_with, listed_twice
from fracgpu.k8s.container import ContainerKind
from fracgpu.state.pod_info import PodInfo


def pods_elsewhere(
    slot_ids: frozenset[str],
    holders: Sequence[SlotHolder],
    pods: Mapping[PodKey, PodInfo],
    *,
    runtime: RuntimeContainers,
    token: str,
) -> frozenset[str]:
    """Return the UIDs of the pods that cannot want the start in flight, though they hold the ids.

    Or might: kubelet does not list what a plain init container holds.

    Kubelet starts the containers of a pod one after another, in the one worker of that pod, which
    waits for our answer (``pkg/kubelet/pod_workers.go``). So the start in flight is not a pod's

    - whose container with these ids runs: kubelet starts it only once it has ended;
    - whose container with these ids has ended and is never started again (below);
    - whose init container with these ids would have to be started while another one runs, or an
      app container;
    - of which another start was rejected meanwhile, as its status shows by *token*.

    None of them is about to read the CDI device of these ids, either.

    A container is never started again if its status says that it has ended and the pod's restart
    policy does not let it start again. That status may be old, but what it says stays true as long
    as the runtime has the container: kubelet starts one anew of which the runtime knows nothing.
    The pod's init containers run again in a new sandbox, for which kubelet first ends what runs in
    the old one (``computePodActions`` in ``pkg/kubelet/kuberuntime/kuberuntime_manager.go``).

    Args:
        slot_ids: what the start in flight names.
        holders: kubelet's list, read while it was in flight.
        pods: the pods by namespace and name.
        runtime: what the runtime had while this start was in flight.
        token: what starts of these ids were rejected with while this one was in flight; known to
            nobody before.
    """
    found = set()
    held = {holder.key for holder in holders if holder.slot_ids & slot_ids} & pods.keys()
    for key in held | {key for key, pod in pods.items() if inits_with(pod, len(slot_ids))}:
        pod, listed = pods[key], [holder for holder in holders if holder.key == key]
        if listed_twice(listed):  # what is known is of the new pod, and the old one may start
            continue
        with_ids = [holder.container for holder in listed if holder.slot_ids & slot_ids]
        if _starts_none(pod, with_ids, slots=len(slot_ids), runtime=runtime) or any(
            token in text for text in pod.waiting.values()
        ):
            found.add(pod.record.uid)
    return frozenset(found)


def _starts_none(
    pod: PodInfo, with_ids: Sequence[str], *, slots: int, runtime: RuntimeContainers
) -> bool:
    uid = pod.record.uid
    waiting = [name for name in with_ids if (uid, name) not in runtime.running]
    if with_ids and not waiting:
        return True
    if any((uid, name, pod.finished.get(name, "")) not in runtime.exited for name in waiting):
        return False
    return not inits_with(pod, slots) or any(
        (uid, spec.name) in runtime.running
        for spec in pod.record.containers
        if spec.kind is not ContainerKind.SIDECAR
    )
