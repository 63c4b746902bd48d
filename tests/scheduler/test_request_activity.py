"""A gap is when a request has been answered and no other is under way."""

import asyncio

import pytest

from scheduler.metrics import RequestActivity

LONG_S = 60.0


async def test_a_gap_begins_when_the_last_request_under_way_is_answered() -> None:
    activity = RequestActivity()
    observed = []
    async with asyncio.TaskGroup() as group:
        with activity:
            with activity:
                waiting = group.create_task(activity.gap(limit_s=LONG_S))
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            observed.append((activity.under_way, waiting.done()))
    observed.append((activity.under_way, waiting.done()))

    assert observed == [(True, False), (False, True)]
    assert activity.begun == 2


async def test_a_gap_is_not_waited_for_longer_than_the_limit() -> None:
    activity = RequestActivity()
    with activity:
        await activity.gap(limit_s=0.001)
        assert activity.under_way


async def test_a_request_that_fails_is_under_way_no_more() -> None:
    activity = RequestActivity()

    with pytest.raises(ZeroDivisionError), activity:
        _ = 1 // 0

    assert not activity.under_way
