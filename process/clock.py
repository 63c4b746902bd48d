"""The only place where a program of ours looks at the time."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a loop needs of time; a test passes one that it can wind forward."""

    def now(self) -> datetime:
        """Tell the date and time, always in UTC."""
        ...

    def monotonic(self) -> float:
        """Tell seconds since some fixed point; never jumps back, so use it for durations."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Return after *duration_s* seconds."""
        ...


class SystemClock(Clock):
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(tz=UTC)  # noqa: TID251 - this is the place the ban points to

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


async def wait_at_most(clock: Clock, event: asyncio.Event, *, limit_s: float) -> bool:
    """Wait until *event* is set or *limit_s* seconds have passed; tell whether it is set.

    A loop that acts on change and on time waits here between two rounds.
    """
    async with asyncio.TaskGroup() as group:
        either = {
            group.create_task(event.wait(), name="wait_for_event"),
            group.create_task(clock.sleep(limit_s), name="wait_for_limit"),
        }
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for task in either:
            task.cancel()
    return event.is_set()
