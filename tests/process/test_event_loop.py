"""The event loop says for how long it looked at no socket."""

import asyncio
import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.event_loop import LongestPause, MeasuredEventLoop, longest_pause_s


class Clock:
    """A clock that advances only by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_callback_that_takes_long_is_a_pause_and_waiting_is_none() -> None:
    clock = Clock()

    async def slow() -> float:
        await asyncio.sleep(0)
        clock.now_s += 0.25
        await asyncio.sleep(0)
        return longest_pause_s(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=lambda: MeasuredEventLoop(clock)) as runner:
        assert runner.run(slow()) == pytest.approx(0.25)


def test_time_spent_waiting_for_sockets_is_no_pause() -> None:
    ticks = count(1_000.0, 0.001)  # each reading of the clock a millisecond after the last

    async def waits() -> float:
        await asyncio.sleep(0.05)
        return longest_pause_s(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=lambda: MeasuredEventLoop(lambda: next(ticks))) as runner:
        # The loop reads its own clock with time.monotonic; ours advances once for each reading.
        assert runner.run(waits()) == pytest.approx(0.001)


def test_another_loop_measures_nothing() -> None:
    async def asked() -> float:
        return longest_pause_s(asyncio.get_running_loop())

    assert math.isnan(asyncio.run(asked()))


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 100)), min_size=1))
def test_a_pause_is_reported_for_one_period_and_forgotten_after_two(
    noted: list[tuple[float, float]],
) -> None:
    pauses, now_s, observed = LongestPause(60.0), 0.0, []
    for pause_s, after_s in noted:
        now_s += after_s
        pauses.note(pause_s, now_s=now_s)
        observed.append((now_s, pause_s))

        found = pauses.longest_s(now_s=now_s)

        assert found >= max(pause for at_s, pause in observed if now_s - at_s <= 60.0)
        assert found <= max(pause for at_s, pause in observed if now_s - at_s < 120.0)
