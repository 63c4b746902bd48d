import asyncio
import json
from datetime import UTC, datetime

import structlog

from tests.fakes.clock import NOON, VirtualClock
from tests.support.waiting import until_true
from tests.webhook.builders import a_pod, a_review
from tests.webhook.harness import a_webhook
from webhook.admission.review import Review, read_review
from webhook.admission.verdict import Allowed
from webhook.review_log import ReviewLog


def the_review(uid: str, **request: str) -> Review:
    return read_review(json.dumps(a_review(a_pod(), uid=uid, **request)).encode())


async def test_lines_are_written_soon_in_their_order_and_with_their_own_times() -> None:
    clock = VirtualClock()
    reviews = ReviewLog(clock)

    with structlog.testing.capture_logs() as lines:
        reviews.add(the_review("first"), Allowed(), took_s=0.001)
        await clock.advance(0.05)
        reviews.add(the_review("second"), Allowed(), took_s=0.002)
        await until_true(lambda: len(lines) == 2, what="both lines are written")

    assert [(line["uid"], line["took_us"]) for line in lines] == [("first", 1000), ("second", 2000)]
    times = [datetime.fromisoformat(line["timestamp"]) for line in lines]
    assert [(time - NOON).total_seconds() for time in times] == [0, 0.05]
    assert all(time.tzinfo == UTC for time in times)


async def test_a_line_that_comes_after_others_were_written_is_written_too() -> None:
    reviews = ReviewLog(VirtualClock())

    with structlog.testing.capture_logs() as lines:
        for uid in ("first", "second"):
            reviews.add(the_review(uid), Allowed(), took_s=0)
            await until_true(lambda: bool(lines) and lines[-1]["uid"] == uid, what=uid)  # noqa: B023

    assert len(lines) == 2


async def test_many_lines_are_written_as_soon_as_the_answer_is() -> None:
    reviews = ReviewLog(VirtualClock())

    with structlog.testing.capture_logs() as lines:
        for number in range(16):
            reviews.add(the_review(str(number)), Allowed(), took_s=0)
        before_the_answer = len(lines)
        await asyncio.sleep(0)

    assert before_the_answer == 0
    assert [line["uid"] for line in lines] == [str(number) for number in range(16)]


async def test_a_line_keeps_no_long_text_of_its_review() -> None:
    reviews = ReviewLog(VirtualClock())

    with structlog.testing.capture_logs() as lines:
        reviews.add(the_review("u" * 5000, name="n" * 5000), Allowed(), took_s=0)
        reviews.flush()

    assert max(len(str(text)) for text in lines[0].values()) <= 253


async def test_no_line_is_lost_when_the_server_stops() -> None:
    with structlog.testing.capture_logs() as lines:
        async with a_webhook() as server:
            await server.post(a_review(a_pod(fraction="0.5"), uid="the-last"))

    assert [line["uid"] for line in lines if line["event"] == "pod_granted"] == ["the-last"]
