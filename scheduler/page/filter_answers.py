"""What the extender last answered about each waiting pod, for people."""

from collections import OrderedDict
from typing import Final

from fracgpu.errors import shorten
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from scheduler.extender.api import FilterResult
from scheduler.page.documents import FilterAnswer

_MOST_PODS: Final = 2000
_MOST_TEXT: Final = 600


class FilterAnswers:
    """The last answer about each of the pods that were asked about last."""

    def __init__(self, clock: Clock, *, most: int = _MOST_PODS) -> None:
        self._clock = clock
        self._most = most
        self._by_uid: OrderedDict[str, FilterAnswer] = OrderedDict()

    def note(self, pod: PodInfo, result: FilterResult) -> None:
        """Remember an answer; one about a pod that asks for no card is skipped."""
        if result.error or (pod.need is None and not pod.need_problem):
            return
        self._by_uid[pod.record.uid] = FilterAnswer(
            at=self._clock.now(),
            nodes=len(result.passed) + result.refused,
            fitting=len(result.passed),
            reason=shorten(result.reason, limit=_MOST_TEXT) if result.reason else "",
        )
        self._by_uid.move_to_end(pod.record.uid)
        if len(self._by_uid) > self._most:
            self._by_uid.popitem(last=False)

    def get(self, uid: str) -> FilterAnswer | None:
        return self._by_uid.get(uid)
