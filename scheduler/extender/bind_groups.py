"""Bindings that follow each other closely are written together.

Each one on its own wakes kube-apiserver, etcd and all who watch pods, and puts them to sleep again.
That costs them more CPU time than the Binding itself: docs/decisions/0050.
"""

from process.clock import Clock


class BindGroups:
    """Tells a Binding when it may be written: at once, unless another was just before it.

    Args:
        clock: measures the time between two groups.
        pause_s: at least this long after one group the next one follows; 0 for no groups.
    """

    def __init__(self, clock: Clock, *, pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._due_s = float("-inf")  # when the last group was or will be written

    async def turn(self) -> None:
        """Return once it is this Binding's turn, at most one pause from now."""
        now_s = self._clock.monotonic()
        if now_s >= self._due_s:  # none is waiting
            self._due_s = max(now_s, self._due_s + self._pause_s)
        if self._due_s > now_s:
            await self._clock.sleep(self._due_s - now_s)
