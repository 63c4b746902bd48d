import asyncio
from datetime import UTC, timedelta

import pytest

from process.clock import SystemClock, wait_at_most
from tests.fakes.clock import NOON, VirtualClock


async def test_the_system_clock_tells_utc_and_never_runs_backwards() -> None:
    clock = SystemClock()

    before = clock.monotonic()
    await clock.sleep(0.01)

    assert clock.monotonic() - before >= 0.01
    assert clock.now().tzinfo is UTC


async def test_a_wait_ends_early_when_the_event_comes() -> None:
    clock, event = VirtualClock(), asyncio.Event()

    async with asyncio.TaskGroup() as group:
        wait = group.create_task(wait_at_most(clock, event, limit_s=60))
        await clock.wait_for_sleepers(1)
        event.set()

    assert wait.result() is True
    assert clock.sleeping == 0


async def test_a_wait_ends_at_its_limit_when_no_event_comes() -> None:
    clock, event = VirtualClock(), asyncio.Event()

    async with asyncio.TaskGroup() as group:
        wait = group.create_task(wait_at_most(clock, event, limit_s=60))
        await clock.wait_for_sleepers(1)
        await clock.advance(59)
        assert not wait.done()
        await clock.advance(1)

    assert wait.result() is False


async def test_a_wait_that_is_cancelled_leaves_nobody_asleep() -> None:
    clock = VirtualClock()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await wait_at_most(clock, asyncio.Event(), limit_s=60)

    assert clock.sleeping == 0


async def test_virtual_sleepers_wake_in_the_order_of_their_time() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, timedelta]] = []

    async def sleeper(name: str, *duration_s: float) -> None:
        for each in duration_s:
            await clock.sleep(each)
            woken.append((name, clock.now() - NOON))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("slow", 3))
        group.create_task(sleeper("fast", 1, 1, 0))
        group.create_task(sleeper("also-slow", 3))
        await clock.wait_for_sleepers(3)
        await clock.advance(10)

    seconds = [(name, elapsed.total_seconds()) for name, elapsed in woken]
    assert seconds == [("fast", 1), ("fast", 2), ("fast", 2), ("slow", 3), ("also-slow", 3)]
    assert clock.monotonic() == 10
