"""Filters again after a short wait, before a pod is refused twice on the same cached state.

kube-scheduler and this process watch the API server independently. When memory is freed, it may
ask again some milliseconds before our watch shows that; a stale refusal would then last until
another event in the cluster, or for five minutes (the flush of unschedulable pods). kube-scheduler
retries only after an event, so two requests with no event in between mean that our watch lags
behind: wait for the event, briefly, and never for more than a fifth of the time.

Source: pkg/scheduler schedule_one.go (a pod that an extender refused is retried on any event of
pods and nodes), and seen on a real kube-scheduler 1.36.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Final, Protocol

from process.clock import Clock
from scheduler.cache.change_signal import ChangeSignal
from scheduler.extender.api import ExtenderArgs, FilterResult

_MOST_REMEMBERED: Final = 10_000  # refused pods; a forgotten one gets no wait once

_REST_PER_WAIT: Final = 4.0  # kube-scheduler schedules pods one at a time, so waits must be rare


class Filter(Protocol):
    """What this module needs of :class:`scheduler.extender.filter.Extender`."""

    def filter(self, args: ExtenderArgs) -> FilterResult: ...


class StaleCacheRetry:
    """Filters, and filters again once the cache has caught up if it may be stale.

    Args:
        inner: answers from the current cache.
        changes: signals pod and node events.
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
        changes.listen(self._ignore_own_status)

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the answer of *inner*, after a wait if the cache may be stale."""
        found = self.begin(args)
        return found if isinstance(found, FilterResult) else await found

    def begin(self, args: ExtenderArgs) -> FilterResult | Awaitable[FilterResult]:
        """Return the answer of *inner*, or what to await for it if the cache may be stale."""
        uid = args.pod.record.uid
        result = self._inner.filter(args)
        if not _may_change(result):
            self._refused_at.pop(uid, None)
            return result
        if self._refused_at.get(uid) == self._changes.count:
            return self._filter_later(args, result, as_of=self._changes.count)
        self._remember(uid)
        return result

    async def _filter_later(
        self, args: ExtenderArgs, result: FilterResult, *, as_of: int
    ) -> FilterResult:
        # The change that is waited for may have come between *result* and this task's first turn.
        if self._changes.count != as_of:
            result = self._inner.filter(args)
        result = await self._wait_for_better(args, result)
        self._remember(args.pod.record.uid)
        return result

    def _remember(self, uid: str) -> None:
        self._refused_at[uid] = self._changes.count
        self._refused_at.move_to_end(uid)
        if len(self._refused_at) > _MOST_REMEMBERED:
            self._refused_at.popitem(last=False)

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

    def _ignore_own_status(self, pod_uid: str) -> None:
        """Ignore the event of kube-scheduler writing our refusal into the pod's own status."""
        if self._refused_at.get(pod_uid) == self._changes.count - 1:
            self._refused_at[pod_uid] += 1


def _may_change(result: FilterResult) -> bool:
    """Report whether no node passed, and a change of pods could let one pass."""
    return not result.passed and not result.error and bool(result.failed)
