"""When Bindings are written that follow each other closely."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.bind_groups import BindGroups
from tests.fakes.clock import VirtualClock

PAUSE_S = 0.1
QUIET_S = 0.02  # after which a burst is over


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


async def test_those_of_a_burst_are_written_together_one_pause_after_the_last() -> None:
    few = [5.0, 5.01, 5.02, 5.03, 5.04]
    burst = [5.05, 5.06, 5.07, 5.08, 5.095, 5.11, 5.125]
    later = [5.145, 5.16, 5.175, 5.19, 5.205, 5.22, 5.235]
    assert await written_at([*few, *burst, *later]) == [*few, *[5.14] * 7, *[5.24] * 7]


async def test_the_last_ones_of_a_burst_are_written_once_no_further_one_comes() -> None:
    few = [5.0, 5.01, 5.02, 5.03, 5.04]
    assert await written_at([*few, 5.05, 5.06]) == [*few, 5.08, 5.08]
    assert await written_at([*few, 5.05, 5.06, 5.085]) == [*few, 5.08, 5.08, 5.105]


async def test_who_is_given_up_while_a_group_waits_for_it_holds_up_none_of_the_others() -> None:
    clock = VirtualClock()
    groups = BindGroups(clock, pause_s=PAUSE_S)
    for _ in range(5):
        await groups.turn()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(groups.turn())
        tasks.create_task(groups.turn())
        await asyncio.sleep(0)
        first.cancel()


async def test_without_a_pause_each_is_written_at_once() -> None:
    burst = [5.0] * 20
    assert await written_at(burst, pause_s=0.0) == burst


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
async def test_none_waits_longer_than_one_pause_and_none_without_a_burst(
    arrivals_ms: list[int],
) -> None:
    arrivals_s = [ms / 1000 for ms in sorted(arrivals_ms)]
    written_s = await written_at(arrivals_s)

    for number, (came_s, done_s) in enumerate(zip(arrivals_s, written_s, strict=True)):
        assert -1e-6 <= done_s - came_s <= PAUSE_S + 1e-6
        if number < 5 or came_s - arrivals_s[number - 5] > 2 * PAUSE_S + 1e-6:
            assert done_s == came_s
        late = [other_s for other_s in arrivals_s if came_s < other_s <= done_s]
        assert all(
            after - before <= QUIET_S + 1e-6 for before, after in pairwise([came_s, *late, done_s])
        )
    groups_s = sorted(set(written_s) - set(arrivals_s))
    for first_s, second_s in pairwise(groups_s):
        began_s = min(
            came_s
            for came_s, done_s in zip(arrivals_s, written_s, strict=True)
            if done_s == second_s
        )
        last_s = max(came_s for came_s in arrivals_s if came_s <= second_s)
        assert began_s >= first_s - 1e-6
        assert second_s - first_s >= PAUSE_S - 1e-6 or second_s - last_s >= QUIET_S - 1e-6
