"""The bound pods by UID, and the sum of what they request of each node besides cards."""

from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.bound_pod import BoundPod


class BoundPodIndex:
    """All bound pods, with their requests summed by node.

    The same pod put twice counts once.
    """

    def __init__(self) -> None:
        self._pods: dict[str, BoundPod] = {}
        self._used: dict[str, HostResources] = {}
        self._changed: dict[str, int] = {}
        self.now = 0

    def put(self, pod: BoundPod) -> bool:
        """Add or replace a pod, and report whether it is new."""
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if before is not None and (before.node, before.host) == (pod.node, pod.host):
            return False
        if before is not None:
            self._change(before.node, NO_HOST_RESOURCES - before.host)
        self._change(pod.node, pod.host)
        return before is None

    def remove(self, uid: str) -> BoundPod | None:
        """Remove a pod and return it; an unknown one changes nothing."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._change(pod.node, NO_HOST_RESOURCES - pod.host)
        return pod

    def get(self, uid: str) -> BoundPod | None:
        return self._pods.get(uid)

    def pods(self) -> tuple[BoundPod, ...]:
        """Return all pods."""
        return tuple(self._pods.values())

    def used(self, node: str) -> HostResources:
        """Return the sum of what the pods of a node request."""
        return self._used.get(node, NO_HOST_RESOURCES)

    def changed_since(self, moment: int) -> tuple[str, ...]:
        """Return the nodes whose sums changed after *moment*, an earlier ``now``; latest last."""
        found: list[str] = []
        for node in reversed(self._changed):
            if self._changed[node] <= moment:
                break
            found.append(node)
        return tuple(reversed(found))

    def __len__(self) -> int:
        return len(self._pods)

    def _change(self, node: str, by: HostResources) -> None:
        self.now += 1
        self._changed.pop(node, None)
        self._changed[node] = self.now  # a dict keeps insertion order: latest last
        after = self.used(node) + by
        if after == NO_HOST_RESOURCES:
            self._used.pop(node, None)
        else:
            self._used[node] = after
