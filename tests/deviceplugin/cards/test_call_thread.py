"""Calls in a thread: their results, their errors, and timeouts."""

import threading

import pytest

from deviceplugin.cards.call_thread import CallThread, StuckError
from tests.support.waiting import until


async def test_a_call_returns_what_the_function_returns() -> None:
    thread = CallThread("test")

    assert await thread.call(pow, 2, 10, timeout_s=5) == 1024
    assert await thread.call(int, "ff", base=16, timeout_s=5) == 255


async def test_an_error_of_the_function_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await CallThread("test").call(int, "x", timeout_s=5)


async def test_all_calls_share_one_thread_that_does_not_hold_up_the_exit() -> None:
    thread = CallThread("test")

    first = await thread.call(threading.current_thread, timeout_s=5)
    second = await thread.call(threading.current_thread, timeout_s=5)

    assert first is second
    assert first.daemon


async def test_a_call_that_hangs_blocks_the_next_until_it_returns() -> None:
    thread, release = CallThread("test"), threading.Event()

    with pytest.raises(StuckError, match=r"wait did not return in 0\.05 s"):
        await thread.call(release.wait, 10, timeout_s=0.05)
    with pytest.raises(StuckError, match="wait has not returned yet"):
        await thread.call(int, "1", timeout_s=5)
    release.set()

    async def answers() -> bool:
        try:
            return await thread.call(int, "1", timeout_s=5) == 1
        except StuckError:
            return False

    await until(answers, what="the thread is free again")
