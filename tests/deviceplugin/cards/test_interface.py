"""What all cards have in common: a thread for their calls, and the meaning of their errors."""

import threading

import pytest

from deviceplugin.cards.call_thread import CallThread, StuckError
from deviceplugin.cards.xid import XIDS, Severity, severity, xid_meaning, xid_text
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


def test_a_thread_can_wait_for_a_call_without_an_event_loop() -> None:
    thread, release = CallThread("test"), threading.Event()

    assert thread.wait(pow, 2, 10, timeout_s=5) == 1024
    with pytest.raises(ValueError, match="invalid literal"):
        thread.wait(int, "x", timeout_s=5)
    with pytest.raises(StuckError, match=r"wait did not return in 0\.05 s"):
        thread.wait(release.wait, 10, timeout_s=0.05)
    with pytest.raises(StuckError, match="wait has not returned yet"):
        thread.wait(int, "1", timeout_s=5)
    release.set()


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


# What a tenant can cause: the first are what NVIDIA's own device plugin passes over as errors of
# programs (internal/rm/health.go).
PROGRAM = (13, 31, 43, 45, 68, 109, 8, 11, 25, 32, 39, 69, 80, 94, 126, 139)
# What the catalog has ignored.
NOTICE = (37, 44, 63, 92, 93, 106, 121, 137, 141, 160)
# What it wants a reset or an inquiry for; and what is not known, or failed to be repaired.
CARD = (46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 145, 1, 9, 47, 157, 171, 999)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [(PROGRAM, Severity.PROGRAM), (NOTICE, Severity.NOTICE), (CARD, Severity.CARD)],
    ids=["program", "notice", "card"],
)
def test_only_what_no_tenant_can_cause_closes_a_card(
    codes: tuple[int, ...], expected: Severity
) -> None:
    assert {code: severity(code) for code in codes} == dict.fromkeys(codes, expected)


def test_a_code_has_the_same_name_in_events_and_in_metrics() -> None:
    for code, xid in XIDS.items():
        assert xid_text(code) == f"XID {code} ({xid.name})"
        assert xid_meaning(code) == xid.name
    assert (xid_text(999), xid_meaning(999)) == ("XID 999", "unknown error")
    assert xid_meaning(0) == "no error"
