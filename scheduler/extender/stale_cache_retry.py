"""A second look before a pod is refused twice on the same news.

kube-scheduler and this process watch the API server independently. When memory is freed, it may
ask again some milliseconds before we have heard of it; our stale "no" would then stand until some
other event of the cluster, or for five minutes (its flush of unschedulable pods). It asks again
only when it has heard something, so being asked twice with no news in between means that news is
on its way to us: wait for it, briefly, and never for more than a fifth of the time.

Source: pkg/scheduler schedule_one.go (a pod that an extender refused is retried on any event of
pods and nodes), and seen on a real kube-scheduler 1.36.
"""

import math
from collections import OrderedDict
from typing import Final, Protocol

from process.clock import Clock
from scheduler.cache.change_signal import ChangeSignal
from scheduler.extender.api import ExtenderArgs, FilterResult

_MOST_REMEMBERED: Final = 10_000  # refused pods; one that is forgotten is not waited for once

_REST_PER_WAIT: Final = 4.0  # kube-scheduler schedules one pod after the other: do not hold it up


class Filter(Protocol):
    """What answers: :class:`scheduler.extender.filter.Extender`."""

    def filter(self, args: ExtenderArgs) -> FilterResult: ...


class StaleCacheRetry:
    """Filters, and looks again where a "no" may only be late news.

    Args:
        inner: answers from what is known now.
        changes: tells what we have heard.
        clock: bounds the wait.
        limit_s: the longest wait, in seconds; kube-scheduler schedules nothing meanwhile.
    """

    def __init__(
        self, inner: Filter, changes: ChangeSignal, clock: Clock, *, limit_s: float
    ) -> None:
        self._inner = inner
        self._changes = changes
        self._clock = clock
        self._limit_s = limit_s
        self._refused_at: OrderedDict[str, int] = OrderedDict()
        self._rest_until_s = -math.inf
        changes.listen(self._overlook_own)

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """Answer as *inner* does, after a wait where that is called for."""
        uid = args.pod.record.uid
        result = self._inner.filter(args)
        if not _may_change(result):
            self._refused_at.pop(uid, None)
            return result
        if self._refused_at.get(uid) == self._changes.count:
            result = await self._wait_for_better(args, result)
        self._refused_at[uid] = self._changes.count
        self._refused_at.move_to_end(uid)
        if len(self._refused_at) > _MOST_REMEMBERED:
            self._refused_at.popitem(last=False)
        return result

    async def _wait_for_better(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        began_s = now_s = self._clock.monotonic()
        if now_s < self._rest_until_s:
            return result
        while _may_change(result) and now_s < began_s + self._limit_s:
            if await self._changes.wait(self._clock, limit_s=began_s + self._limit_s - now_s):
                result = self._inner.filter(args)
            now_s = self._clock.monotonic()
        self._rest_until_s = now_s + (now_s - began_s) * _REST_PER_WAIT
        return result

    def _overlook_own(self, pod_uid: str) -> None:
        """Not count as news that kube-scheduler wrote our refusal into the pod's own status."""
        if self._refused_at.get(pod_uid) == self._changes.count - 1:
            self._refused_at[pod_uid] += 1


def _may_change(result: FilterResult) -> bool:
    """Tell whether nothing passed, and a change of pods could let something pass."""
    return not result.passed and not result.error and bool(result.failed)
