"""Holds filter back until it is known where the pods that were filtered before go.

kube-scheduler filters one pod after the other, but binds each beside that. A pod whose volume has
to be made first is nominated to its node meanwhile, and both a Binding and a nomination take some
milliseconds to arrive here. Until then its cards would be free for the next pod; and one that was
made a volume on a node cannot go to another any more. So where either of two pods has claims, the
second waits until the first is bound, nominated, gone, or has got a failure written into its
status. Other events of the first say nothing of that, such as one that is late.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from fracgpu.state.pod_info import PodInfo
from process.clock import Clock, wait_at_most
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.nominations import Nominations
from scheduler.extender.api import FilterResult

# kube-scheduler before 1.35 nominates no pod, and places others only after this.
_LIMIT_S: Final = 0.5


class _Open(NamedTuple):
    pod: PodInfo  # as it was filtered
    until_s: float


class BindingCycles:
    """The pods that filter has passed and of which nothing has been heard since.

    Args:
        nominations: counted before a pod is filtered.
        changes: signals pod events.
        clock: bounds the wait.
        find: returns the informer's copy of a pending pod by namespace and name, or None.
    """

    def __init__(
        self,
        nominations: Nominations,
        changes: ChangeSignal,
        clock: Clock,
        *,
        find: Callable[[str, str], PodInfo | None],
    ) -> None:
        self._nominations = nominations
        self._clock = clock
        self._find = find
        self._open: dict[str, _Open] = {}
        self._next = asyncio.Event()
        changes.listen(self._hear)

    def _hear(self, uid: str) -> None:
        known = self._open.get(uid)
        if known is None:
            return
        record = known.pod.record
        pod = self._find(record.namespace, record.name)
        if pod is None or pod.record.uid != uid or _state(pod) != _state(known.pod):
            self.settle(uid)

    def settle(self, uid: str) -> None:
        """Take note that a pod was bound, nominated, refused or deleted."""
        if self._open.pop(uid, None) is not None:
            self._next.set()
            self._next = asyncio.Event()

    def begin(self, pod: PodInfo) -> Awaitable[None] | None:
        """Return what to await before *pod* is filtered; None if nothing."""
        if self._left_s(pod) > 0:
            return self._wait(pod)
        self._nominations.count()
        return None

    async def _wait(self, pod: PodInfo) -> None:
        while (left_s := self._left_s(pod)) > 0:
            await wait_at_most(self._clock, self._next, limit_s=left_s)
        self._nominations.count()

    def filtered(self, pod: PodInfo, result: FilterResult) -> None:
        """Take note of the answer about a pod."""
        if pod.need is None or result.error:
            return
        self._nominations.filtered(pod, fits=bool(result.passed))
        if result.passed:
            until_s = self._clock.monotonic() + _LIMIT_S
            self._open[pod.record.uid] = _Open(pod, until_s)

    def _left_s(self, pod: PodInfo) -> float:
        """Return for how long filter should wait at most; 0 or less if not at all."""
        if not self._open or pod.need is None:
            return 0.0
        now_s, uid = self._clock.monotonic(), pod.record.uid
        last_s = max(
            (
                known.until_s
                for one, known in self._open.items()
                if one != uid and (known.pod.has_claims or pod.has_claims)
            ),
            default=-math.inf,
        )
        for old in [one for one, known in self._open.items() if known.until_s <= now_s]:
            del self._open[old]
        return last_s - now_s


def _state(pod: PodInfo) -> tuple[object, ...]:
    """Return what changes when a pod is nominated or deleted, or finds no node."""
    return (
        pod.nominated_node,
        pod.unschedulable_since,
        pod.unschedulable_why,
        pod.record.terminating,
        pod.record.live,
    )
