"""Bindings of a burst are written together.

Each one on its own wakes kube-apiserver, etcd and all who watch pods, and puts them to sleep again.
That costs them more CPU time than the Binding itself: docs/decisions/0039.
"""

import asyncio
from collections import deque
from typing import Final

from process.clock import Clock

# Fewer Bindings than this within one pause are no burst, and none of them waits.
_BURST: Final = 5
# A burst in which none came for this long is over: nothing is gained by waiting for more.
_QUIET_S: Final = 0.02


class BindGroups:
    """When each Binding may be written: at once, or with the others of a burst.

    Args:
        clock: measures the time.
        pause_s: within a burst, at least this long after one group the next one follows, or once
            no further one has come for 20 ms; 0 for no groups.
    """

    def __init__(self, clock: Clock, *, pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._came_s: deque[float] = deque(maxlen=_BURST)
        self._written_s = float("-inf")  # the last ones
        self._group: asyncio.Event | None = None  # set when those that wait may be written

    async def turn(self) -> None:
        """Return once it is this Binding's turn, at most one pause from now."""
        now_s = self._clock.monotonic()
        burst = len(self._came_s) == _BURST and now_s - self._came_s[0] < self._pause_s
        self._came_s.append(now_s)
        if self._group is not None:
            await self._group.wait()
        elif burst and now_s < self._written_s + self._pause_s:
            await self._lead(due_s=self._written_s + self._pause_s)
        else:
            self._written_s = now_s

    async def _lead(self, *, due_s: float) -> None:
        """Wait for all of a group: one timer instead of one for each."""
        group = self._group = asyncio.Event()
        try:
            while True:
                now_s = self._clock.monotonic()
                left_s = min(due_s, self._came_s[-1] + _QUIET_S) - now_s
                if left_s <= 0:
                    break
                await self._clock.sleep(left_s)
        finally:  # also if this one is given up
            self._written_s = self._clock.monotonic()
            self._group = None
            group.set()
