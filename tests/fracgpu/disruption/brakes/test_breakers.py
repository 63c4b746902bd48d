"""Circuit breakers: what opens each, its way back, and what never opens one."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.brakes import (
    NO_OUTAGES,
    Breaker,
    OpenBreaker,
    Outages,
    effective_mode,
    open_breakers,
)
from fracgpu.disruption.move import Ending, PastMove
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, a_past_move

MINUTE = timedelta(minutes=1)


def ended(*, minutes_ago: float, **changes: object) -> PastMove:
    past_move = a_past_move(minutes_ago=minutes_ago + 5)
    ended_at = NOON - timedelta(minutes=minutes_ago)
    return replace(past_move, ended_at=ended_at, **changes)  # type: ignore[arg-type]


def aborted(minutes_ago: float) -> PastMove:
    return ended(minutes_ago=minutes_ago, ending=Ending.NOT_READY)


def opened(
    *past: PastMove,
    policy: RebalancerPolicy = ACTIVE,
    now: datetime = NOON,
    outages: Outages = NO_OUTAGES,
) -> dict[Breaker, datetime | None]:
    found = open_breakers(past, policy=policy, now=now, outages=outages)
    return {breaker.breaker: breaker.until for breaker in found}


def test_two_aborts_after_a_disturbance_open_it_until_the_older_one_is_forgotten() -> None:
    past = (aborted(29), aborted(3))

    assert opened(past[1]) == {}
    assert opened(*past) == {Breaker.ABORTS: NOON + MINUTE}
    assert opened(*past, now=NOON + MINUTE) == {}


def test_what_was_given_up_before_it_disturbed_a_pod_opens_nothing() -> None:
    past = [replace(aborted(m), disturbed=False) for m in range(1, 20)]

    assert opened(*past) == {}


@pytest.mark.parametrize(
    "ending",
    [Ending.SCALED_DOWN, Ending.ROLLOUT, Ending.POD_GONE, Ending.OWNER_GONE, Ending.PAUSED],
)
def test_what_users_did_meanwhile_opens_nothing(ending: Ending) -> None:
    assert opened(*(ended(minutes_ago=m, ending=ending) for m in range(1, 20))) == {}


def test_what_was_only_shown_opens_nothing() -> None:
    past = [ended(minutes_ago=m, useless=True, ending=Ending.DRY_RUN) for m in range(1, 20)]

    assert opened(*past) == {}


def test_it_says_how_many_pods_were_lost() -> None:
    one, two = (ended(minutes_ago=minutes, ending=Ending.LOST) for minutes in (10, 20))

    def why(*past: PastMove) -> list[str]:
        found = open_breakers(past, policy=ACTIVE, now=NOON, outages=NO_OUTAGES)
        return [breaker.why for breaker in found if breaker.breaker is Breaker.LOST_POD]

    assert why(one) == ["a pod was lost"]
    assert why(one, two) == ["2 pods were lost"]


def test_one_that_cannot_know_when_it_closes_says_so() -> None:
    assert str(OpenBreaker(breaker=Breaker.BLIND, why="no samples", until=None)) == (
        "blind: no samples; until it sees again"
    )


def test_one_lost_pod_opens_it_for_a_day() -> None:
    lost = ended(minutes_ago=10, ending=Ending.LOST)

    assert opened(lost) == {Breaker.LOST_POD: NOON + timedelta(days=1) - 10 * MINUTE}
    assert opened(lost, now=NOON + timedelta(days=1)) == {}


def test_four_useless_moves_of_the_last_six_open_it() -> None:
    good = [ended(minutes_ago=600 + m, ending=Ending.RELIEVED) for m in range(10)]
    useless = [
        ended(minutes_ago=60 * (m + 1), useless=True, ending=Ending.USELESS) for m in range(4)
    ]

    assert opened(*good, *useless[:3]) == {}
    assert opened(*good, *useless) == {Breaker.INEFFECTIVE: NOON + timedelta(hours=20)}
    assert opened(*good, *useless, now=NOON + timedelta(hours=20)) == {}
    better = [ended(minutes_ago=m, ending=Ending.RELIEVED) for m in (1, 2, 3)]
    assert opened(*good, *useless, *better) == {}


def test_blind_for_too_long_it_opens_and_must_see_as_long_again() -> None:
    outages = NO_OUTAGES
    for minute in range(12):
        outages = outages.after_cycle(blind=True, policy=ACTIVE, now=NOON + minute * MINUTE)
        open_now = opened(now=NOON + minute * MINUTE, outages=outages)
        assert open_now == ({Breaker.BLIND: None} if minute > 10 else {})
    sees = NOON + 12 * MINUTE
    outages = outages.after_cycle(blind=False, policy=ACTIVE, now=sees)

    assert opened(now=sees, outages=outages) == {Breaker.BLIND: sees + 10 * MINUTE}
    assert opened(now=sees + 10 * MINUTE, outages=outages) == {}


def test_blind_for_a_while_only_it_stays_closed() -> None:
    outages = NO_OUTAGES.after_cycle(blind=True, policy=ACTIVE, now=NOON)
    outages = outages.after_cycle(blind=False, policy=ACTIVE, now=NOON + 10 * MINUTE)

    assert opened(now=NOON + 10 * MINUTE, outages=outages) == {}


def test_errors_of_the_api_server_open_it_until_they_are_forgotten() -> None:
    outages = NO_OUTAGES
    for minute in range(10):
        assert opened(now=NOON + minute * MINUTE, outages=outages) == {}
        outages = outages.after_api_error(policy=ACTIVE, now=NOON + minute * MINUTE)

    now = NOON + 9 * MINUTE
    assert opened(now=now, outages=outages) == {Breaker.API_ERRORS: NOON + 30 * MINUTE}
    assert opened(now=NOON + 30 * MINUTE, outages=outages) == {}


def test_an_administrator_closes_them_and_they_open_again_on_what_comes_after() -> None:
    outages = Outages(seeing_since=NOON - MINUTE, api_errors=(NOON - MINUTE,) * 10)
    past = [aborted(3), aborted(2), ended(minutes_ago=2, ending=Ending.LOST)]
    reset = replace(ACTIVE, reset_breakers_at=NOON - timedelta(seconds=30))

    assert len(opened(*past, outages=outages)) == 4
    assert opened(*past, policy=reset, outages=outages) == {}
    after = ended(minutes_ago=0.25, ending=Ending.LOST)
    assert set(opened(*past, after, policy=reset, outages=outages)) == {Breaker.LOST_POD}


def test_a_reset_in_the_future_closes_nothing_yet() -> None:
    reset = replace(ACTIVE, reset_breakers_at=NOON + MINUTE)

    assert set(opened(aborted(3), aborted(2), policy=reset)) == {Breaker.ABORTS}


def test_while_one_is_open_active_becomes_a_dry_run_and_no_other_mode_changes() -> None:
    breakers = open_breakers([aborted(3), aborted(2)], policy=ACTIVE, now=NOON)

    assert effective_mode(ACTIVE, ()) is Mode.ACTIVE
    assert effective_mode(ACTIVE, breakers) is Mode.DRY_RUN
    for mode in (Mode.OFF, Mode.RECOMMEND, Mode.DRY_RUN):
        assert effective_mode(replace(ACTIVE, mode=mode), breakers) is mode


def test_it_says_why_and_until_when() -> None:
    (breaker,) = open_breakers([aborted(29), aborted(3)], policy=ACTIVE, now=NOON)

    assert str(breaker) == (
        f"aborts: 2 moves were aborted after a pod was disturbed; until {NOON:%Y-%m-%d} "
        "12:01:00 UTC"
    )


@given(
    st.lists(
        st.builds(
            ended,
            minutes_ago=st.floats(0, 10_000),
            disturbed=st.booleans(),
            ending=st.sampled_from(Ending),
            useless=st.booleans(),
        ),
        max_size=30,
    )
)
def test_every_breaker_closes_by_itself_when_it_said(past: list[PastMove]) -> None:
    for breaker in open_breakers(past, policy=ACTIVE, now=NOON):
        assert breaker.until is not None
        assert NOON < breaker.until <= NOON + timedelta(days=7)
        just_before = breaker.until - timedelta(microseconds=1)
        assert breaker.breaker in opened(*past, now=just_before)
        assert breaker.breaker not in opened(*past, now=breaker.until)


@pytest.mark.parametrize("blind", [True, False])
def test_a_clock_that_is_set_back_opens_nothing(blind: bool) -> None:
    outages = NO_OUTAGES.after_cycle(blind=True, policy=ACTIVE, now=NOON)
    outages = outages.after_cycle(blind=blind, policy=ACTIVE, now=NOON - 60 * MINUTE)

    assert opened(now=NOON - 60 * MINUTE, outages=outages) == {}
