"""Bindings of a burst are written together.

Each one on its own wakes kube-apiserver, etcd and all who watch pods, and puts them to sleep again.
That costs them more CPU time than the Binding itself: docs/decisions/0050.
"""

from collections import deque
from typing import Final

from process.clock import Clock

# Fewer Bindings than this within one pause are no burst, and none of them waits.
_BURST: Final = 5


class BindGroups:
    """When each Binding may be written: at once, or with the others of a burst.

    Args:
        clock: measures the time.
        pause_s: within a burst, at least this long after one group the next one follows; 0 for no
            groups.
    """

    def __init__(self, clock: Clock, *, pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._came_s: deque[float] = deque(maxlen=_BURST)
        self._due_s = float("-inf")  # when the last ones were or will be written

    async def turn(self) -> None:
        """Return once it is this Binding's turn, at most one pause from now."""
        now_s = self._clock.monotonic()
        burst = len(self._came_s) == _BURST and now_s - self._came_s[0] < self._pause_s
        self._came_s.append(now_s)
        if now_s >= self._due_s:  # none is waiting
            self._due_s = max(now_s, self._due_s + self._pause_s) if burst else now_s
        if self._due_s > now_s:
            await self._clock.sleep(self._due_s - now_s)
