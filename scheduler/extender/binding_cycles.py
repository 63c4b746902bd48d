"""Holds filter back until it is known where the pods that were filtered before go.

kube-scheduler filters one pod after the other, but binds each beside that. A pod whose volume has
to be made first is nominated to its node meanwhile, and both a Binding and a nomination take some
milliseconds to arrive here. Until then its cards would be free for the next pod; and one that was
made a volume on a node cannot go to another any more. So where either of two pods has claims, the
second waits until the first is bound, nominated, or has been written a failure into its status.
"""

import asyncio
import math
from collections.abc import Awaitable
from typing import Final

from fracgpu.state.pod_info import PodInfo
from process.clock import Clock, wait_at_most
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.nominations import Nominations
from scheduler.extender.api import FilterResult

# kube-scheduler before 1.35 nominates no pod, and places others only after this.
_LIMIT_S: Final = 0.5


class BindingCycles:
    """The pods that filter has passed and of which nothing has been heard since.

    Args:
        nominations: counted before a pod is filtered.
        changes: signals pod events.
        clock: bounds the wait.
    """

    def __init__(self, nominations: Nominations, changes: ChangeSignal, clock: Clock) -> None:
        self._nominations = nominations
        self._clock = clock
        self._open: dict[str, tuple[float, bool]] = {}  # UID: until when, and has it claims
        self._next = asyncio.Event()
        changes.listen(self.settle)

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
            self._open[pod.record.uid] = (until_s, pod.has_claims)

    def _left_s(self, pod: PodInfo) -> float:
        """Return for how long filter should wait at most; 0 or less if not at all."""
        if not self._open or pod.need is None:
            return 0.0
        now_s, uid = self._clock.monotonic(), pod.record.uid
        ends = (
            (until_s, one) for one, (until_s, has) in self._open.items() if has or pod.has_claims
        )
        last_s = max((until_s for until_s, one in ends if one != uid), default=-math.inf)
        for old in [one for one, (until_s, _) in self._open.items() if until_s <= now_s]:
            del self._open[old]
        return last_s - now_s
