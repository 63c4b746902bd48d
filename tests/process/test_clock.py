import asyncio

import pytest

from process.clock import wait_at_most
from tests.fakes.clock import VirtualClock


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
