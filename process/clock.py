"""The only place that reads the system's clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time as loops need it; a test passes a virtual one."""

    def now(self) -> datetime:
        """Return the date and time, always in UTC."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since some fixed point; never jumps back: use it for durations."""
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
    """Wait until *event* is set or *limit_s* seconds have passed; return whether it is set.

    For loops that act both on events and periodically.
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
