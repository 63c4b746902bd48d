"""A loop that makes no progress is distinguished from a slow one."""

from process.heartbeat import Heartbeat
from tests.fakes.clock import VirtualClock


async def test_a_loop_that_stands_still_past_its_limit_is_named_until_it_goes_round() -> None:
    clock = VirtualClock()
    heart = Heartbeat(clock, name="collecting", limit_s=60)

    await clock.advance(60)
    assert heart.problem() is None
    await clock.advance(1)
    assert heart.problem() == "collecting has made no progress for 61 s; want at most 60"

    heart.beat()
    assert heart.problem() is None
