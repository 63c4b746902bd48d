"""An event loop that knows how long it stood still."""

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 60.0


class LongestPause:
    """The longest of the pauses noted lately: in this period and the one before it.

    Args:
        period_s: the length of a period in seconds.
    """

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._period = 0
        self._ends_s = 0.0
        self._longest_s = self._before_s = 0.0

    def note(self, pause_s: float, *, now_s: float) -> None:
        """Take notice of a pause that ended just now."""
        if pause_s <= self._longest_s and now_s < self._ends_s:
            return  # nearly always
        self._turn(now_s)
        self._longest_s = max(self._longest_s, pause_s)

    def longest_s(self, *, now_s: float) -> float:
        """Return the longest pause in seconds; 0 if there was none."""
        self._turn(now_s)
        return max(self._longest_s, self._before_s)

    def _turn(self, now_s: float) -> None:
        period = int(now_s // self._period_s)
        if period != self._period:
            self._before_s = self._longest_s if period == self._period + 1 else 0.0
            self._period, self._longest_s = period, 0.0
        self._ends_s = (period + 1) * self._period_s


class _TimedSelector(selectors.DefaultSelector):
    """Notes the time from one wait for events to the next, in which callbacks ran."""

    def __init__(self, pauses: LongestPause, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._pauses = pauses
        self._monotonic = monotonic
        self._woke_s = monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now_s = self._monotonic()
        self._pauses.note(now_s - self._woke_s, now_s=now_s)
        try:
            return super().select(timeout)
        finally:
            self._woke_s = self._monotonic()


class MeasuredEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop, which also knows the longest time that no request was looked at.

    That is the time for which callbacks ran between two looks at the sockets, the time included for
    which the process got no processor. It costs two readings of the clock each time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pauses = LongestPause()
        super().__init__(_TimedSelector(self._pauses, monotonic))

    @property
    def longest_pause_s(self) -> float:
        """The longest pause of the last one to two minutes, in seconds."""
        return self._pauses.longest_s(now_s=self._monotonic())


def longest_pause_s(loop: asyncio.AbstractEventLoop) -> float:
    """Return the longest pause of *loop* lately in seconds; NaN if it does not measure any."""
    return loop.longest_pause_s if isinstance(loop, MeasuredEventLoop) else float("nan")
