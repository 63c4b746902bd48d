"""Clocks that a test advances: one that stands still, and the machine's with an offset."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from typing import Final

from process.clock import Clock, SystemClock

NOON: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
_SETTLE_TURNS: Final = 50


class VirtualClock(Clock):
    """Time passes only in ``advance``; sleepers wake in order of their time, then of arrival."""

    def __init__(self, start: datetime = NOON) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._arrivals = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, duration_s: float) -> None:
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._sleepers, (self._elapsed_s + duration_s, self._arrivals, waker))
        await waker

    @property
    def sleeping(self) -> int:
        """The number of sleepers now."""
        return sum(not waker.done() for _, _, waker in self._sleepers)

    async def advance(self, duration_s: float) -> None:
        """Let *duration_s* pass; each sleeper sees exactly the time it asked for.

        Between two wake-ups the other tasks get a few turns of the event loop, enough for anything
        that does not wait for a socket or a thread.
        """
        target_s = self._elapsed_s + duration_s
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target_s:
            due_s, _, waker = heapq.heappop(self._sleepers)
            if waker.done():
                continue
            self._elapsed_s = due_s
            waker.set_result(None)
            await self._settle()
        self._elapsed_s = target_s
        await self._settle()

    async def wait_for_sleepers(self, count: int) -> None:
        """Wait in real time until at least *count* sleep, so that all other work has settled."""
        async with asyncio.timeout(60):
            while self.sleeping < count:  # noqa: ASYNC110 - sleepers do not signal us
                await asyncio.sleep(0.001)

    async def _settle(self) -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)


class ShiftedClock(SystemClock):
    """The machine's clock with an offset: after it was set, or after a time has passed."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.shift_s)
