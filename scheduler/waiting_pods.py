"""The pods that wait for a card, and what keeps each of them waiting."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from fracgpu.placement.fit_index import Obstacle
from fracgpu.state.pod_info import PodInfo
from kube.informer import Change, ChangeType
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod
from scheduler.extender.api import FilterResult
from scheduler.fence import awaits_placement
from scheduler.metrics import Waiting, WaitReason

_OF_OBSTACLE: Final = {obstacle: WaitReason[obstacle.name] for obstacle in Obstacle}

# Answers about pods whose creation the watch has not told yet, or whose end it has.
_MOST_UNKNOWN: Final = 1000


class WaitingPods:
    """All pods that ask for a card and have no node, gated ones too.

    Args:
        clock: measures how long they wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, PodInfo] = {}
        self._released: dict[str, datetime] = {}
        self._answers: dict[str, Obstacle | None] = {}

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
            for known in (self._pods, self._released, self._answers):
                known.pop(uid, None)
            return
        before = self._pods.get(uid)
        if before is not None and before.gated and not pod.gated:
            self._released[uid] = self._clock.now()
        self._pods[uid] = pod

    def note(self, pod: PodInfo, result: FilterResult) -> None:
        """Remember the last answer to kube-scheduler about a pod, known here already or not."""
        if result.error:
            return
        if len(self._answers) > len(self._pods) + _MOST_UNKNOWN:
            self._answers = {uid: why for uid, why in self._answers.items() if uid in self._pods}
        self._answers[pod.record.uid] = None if result.passed else result.nearest

    def by_reason(self) -> Mapping[WaitReason, Waiting]:
        """Return the pods that wait, without gated ones: these wait for whoever gated them.

        A pod waits since it was created, or was seen to lose its last gate.
        """
        now, found = self._clock.now(), dict.fromkeys(WaitReason, Waiting())
        for uid, pod in self._pods.items():
            if pod.gated:
                continue
            reason, since = self._reason(uid, pod), self._released.get(uid) or pod.created_at
            before = found[reason]
            waited_s = 0.0 if since is None else (now - since).total_seconds()
            longest_s = max(before.longest_s, waited_s)
            found[reason] = Waiting(pods=before.pods + 1, longest_s=longest_s)
        return found

    def _reason(self, uid: str, pod: PodInfo) -> WaitReason:
        if pod.need_problem:
            return WaitReason.REQUEST
        obstacle = self._answers.get(uid)
        if obstacle is not None:
            return _OF_OBSTACLE[obstacle]
        tried = pod.unschedulable_since is not None or uid in self._answers
        return WaitReason.NOT_CARDS if tried else WaitReason.NOT_TRIED
