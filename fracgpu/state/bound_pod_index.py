"""The bound pods: by UID, and what they take of each node besides cards."""

from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.bound_pod import BoundPod


class BoundPodIndex:
    """Told of each bound pod and of each that is gone; the same news twice counts once."""

    def __init__(self) -> None:
        self._pods: dict[str, BoundPod] = {}
        self._used: dict[str, HostResources] = {}
        self._changed: dict[str, int] = {}
        self.now = 0

    def put(self, pod: BoundPod) -> bool:
        """Note a pod as it is now; tell whether it is a new one."""
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if before is not None and (before.node, before.host) == (pod.node, pod.host):
            return False
        if before is not None:
            self._add(before, -1)
        self._add(pod, 1)
        return before is None

    def remove(self, uid: str) -> None:
        """Note that a pod is gone; one that was never bound changes nothing."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._add(pod, -1)

    def get(self, uid: str) -> BoundPod | None:
        return self._pods.get(uid)

    def pods(self) -> tuple[BoundPod, ...]:
        """Give all pods."""
        return tuple(self._pods.values())

    def used(self, node: str) -> HostResources:
        """Add up what the pods of a node request."""
        return self._used.get(node, NO_HOST_RESOURCES)

    def changed_since(self, moment: int) -> tuple[str, ...]:
        """Name nodes whose sums changed after *moment*, a former value of ``now``; latest last."""
        found: list[str] = []
        for node in reversed(self._changed):
            if self._changed[node] <= moment:
                break
            found.append(node)
        return tuple(reversed(found))

    def __len__(self) -> int:
        return len(self._pods)

    def _add(self, pod: BoundPod, sign: int) -> None:
        self.now += 1
        self._changed.pop(pod.node, None)
        self._changed[pod.node] = self.now  # the latest stands last
        now = self._used.get(pod.node, NO_HOST_RESOURCES)
        after = HostResources(
            cpu_milli=now.cpu_milli + sign * pod.host.cpu_milli,
            memory_mib=now.memory_mib + sign * pod.host.memory_mib,
            pods=now.pods + sign * pod.host.pods,
        )
        if after == NO_HOST_RESOURCES:
            self._used.pop(pod.node, None)
        else:
            self._used[pod.node] = after
