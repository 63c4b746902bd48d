"""When Bindings are written that follow each other closely."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.bind_groups import BindGroups
from tests.fakes.clock import VirtualClock

PAUSE_S = 0.1


async def written_at(arrivals_s: list[float], *, pause_s: float = PAUSE_S) -> list[float]:
    """Return when the Bindings that arrive at these times, which ascend, are written."""
    clock = VirtualClock()
    groups = BindGroups(clock, pause_s=pause_s)
    written: dict[int, float] = {}

    async def one(number: int) -> None:
        await groups.turn()
        written[number] = clock.monotonic()

    async with asyncio.TaskGroup() as tasks:
        for number, at_s in enumerate(arrivals_s):
            await clock.advance(at_s - clock.monotonic())
            tasks.create_task(one(number))
        await clock.advance(2 * pause_s)
    return [round(written[number], 6) for number in range(len(arrivals_s))]


async def test_a_binding_after_a_quiet_time_is_written_at_once() -> None:
    assert await written_at([5.0, 6.0]) == [5.0, 6.0]


async def test_bindings_that_follow_closely_are_written_together_one_pause_after_the_last() -> None:
    assert await written_at([5.0, 5.02, 5.06, 5.11]) == [5.0, 5.1, 5.1, 5.2]


async def test_without_a_pause_each_is_written_at_once() -> None:
    assert await written_at([5.0, 5.0, 5.01], pause_s=0.0) == [5.0, 5.0, 5.01]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
async def test_none_waits_longer_than_one_pause_and_groups_are_a_pause_apart(
    arrivals_ms: list[int],
) -> None:
    arrivals_s = [ms / 1000 for ms in sorted(arrivals_ms)]
    written_s = await written_at(arrivals_s)

    waits_s = [done - came for came, done in zip(arrivals_s, written_s, strict=True)]
    assert all(-1e-6 <= wait <= PAUSE_S + 1e-6 for wait in waits_s)
    groups_s = sorted(set(written_s))
    assert all(later - earlier >= PAUSE_S - 1e-6 for earlier, later in pairwise(groups_s))
