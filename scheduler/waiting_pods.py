"""The pods that wait for a card, and what keeps each of them waiting."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from fracgpu import names
from fracgpu.caching import cached
from fracgpu.placement.fit import Obstacle
from fracgpu.state.pod_info import PodInfo
from kube.informer import Change, ChangeType
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod
from scheduler.extender.gang_room import GANG_WORDS
from scheduler.fence import awaits_placement
from scheduler.metrics import Waiting, WaitReason

# kube-scheduler's plugin NodeResourcesFit refuses a node that is full before we are asked.
_INSUFFICIENT: Final = {
    Obstacle.MEMORY: f"Insufficient {names.GPU_MEM}",
    Obstacle.COMPUTE: f"Insufficient {names.GPU_SLOT}",
}


class WaitingPods:
    """All pods that ask for a card and have no node, gated ones too.

    Args:
        clock: measures how long they wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, PodInfo] = {}
        self._released: dict[str, datetime] = {}

    @property
    def by_uid(self) -> Mapping[str, PodInfo]:
        """The pods by their UIDs."""
        return self._pods

    def pod_changed(self, change: Change[AnyPod]) -> None:
        """Take notice of a pod."""
        uid, pod = change.uid, change.object
        if (
            change.type is ChangeType.DELETED
            or not isinstance(pod, PodInfo)
            or not awaits_placement(pod)
        ):
            self._pods.pop(uid, None)
            self._released.pop(uid, None)
            return
        before = self._pods.get(uid)
        if before is not None and before.gated and not pod.gated:
            self._released[uid] = self._clock.now()
        self._pods[uid] = pod

    def by_reason(self) -> Mapping[WaitReason, Waiting]:
        """Count the pods that wait, without gated ones: these wait for whoever gated them.

        A pod waits since it was created, or was seen to lose its last gate.
        """
        now, since = self._clock.now(), defaultdict[WaitReason, list[datetime]](list)
        for uid, pod in self._pods.items():
            if not pod.gated:
                since[_reason(pod)].append(self._released.get(uid) or pod.created_at or now)
        return {
            reason: Waiting(pods=len(times), longest_s=(now - min(times)).total_seconds())
            for reason, times in since.items()
        }


def _reason(pod: PodInfo) -> WaitReason:
    if pod.need_problem:
        return WaitReason.REQUEST
    if pod.unschedulable_since is None and not pod.unschedulable_why:
        return WaitReason.NOT_TRIED
    return _reason_in(pod.unschedulable_why)


@cached(entries=1024)  # replicas are refused alike
def _reason_in(why: str) -> WaitReason:
    """Return the reason that kube-scheduler gives, of the node that is nearest to a fit."""
    if any(words in why for words in GANG_WORDS):
        return WaitReason.GANG
    for obstacle in Obstacle:
        if obstacle.value in why or _INSUFFICIENT.get(obstacle, obstacle.value) in why:
            return WaitReason[obstacle.name]
    return WaitReason.NOT_CARDS
