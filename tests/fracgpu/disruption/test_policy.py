"""The policy: what each level of the dial sets, and times in which no move is begun."""

import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.aggressiveness import DEFAULT_LEVEL, DIAL, LEVELS, policy_at
from fracgpu.disruption.change_freeze import (
    LONGEST,
    SHORTEST,
    ChangeFreeze,
    parse_duration,
    parse_schedule,
)
from fracgpu.disruption.policy import Mode, RebalancerPolicy

# Where a bolder level has the smaller value; where it has the larger one.
FALLING = {
    "hot_ratio",
    "fast_window_s",
    "slow_window_s",
    "forecast_window_s",
    "memory_window_s",
    "fast_hot_ratio",
    "slow_hot_ratio",
    "settle_s",
    "min_pod_busy_ratio",
    "min_pod_age_s",
    "owner_cooldown_s",
    "card_cooldown_s",
    "return_cooldown_s",
}
RISING = {
    "max_in_flight",
    "max_per_hour",
    "max_per_day",
    "max_per_namespace_per_hour",
    "max_per_owner_per_day",
    "make_room_moves",
    "max_cordoned_ratio",
}


def test_the_default_changes_nothing_in_the_cluster() -> None:
    assert RebalancerPolicy().mode is Mode.DRY_RUN


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_contradicts_itself(level: int) -> None:
    policy = policy_at(level)

    assert policy.aggressiveness == level
    assert policy.min_pod_busy_ratio < policy.ceiling_ratio < policy.clear_ratio < policy.hot_ratio
    assert policy.step_s * 5 <= policy.fast_window_s <= policy.slow_window_s
    assert policy.fast_window_s <= policy.settle_s
    assert policy.fast_window_s <= policy.forecast_window_s <= policy.memory_window_s
    assert max(policy.fast_hot_ratio, policy.slow_hot_ratio, policy.hot_ratio) < 1
    assert policy.max_per_hour <= policy.max_per_day
    assert min(policy.cordon_s, policy.plan_ttl_s) >= 2 * policy.tick_s


def test_the_middle_level_is_the_defaults() -> None:
    assert policy_at(DEFAULT_LEVEL) == RebalancerPolicy()


def test_the_lines_of_a_card_follow_the_one_that_can_be_set() -> None:
    policy = RebalancerPolicy()
    low = replace(policy, hot_ratio=0.4)

    assert (policy.clear_ratio, policy.ceiling_ratio) == (0.65, 0.6)
    assert (low.clear_ratio, low.ceiling_ratio) == (0.325, 0.3)


def test_a_level_has_whole_numbers_where_the_default_does() -> None:
    for level in LEVELS:
        for name in RISING - {"max_cordoned_ratio"}:
            value = getattr(policy_at(level), name)
            assert isinstance(value, int), name
            assert value >= 1, name


def test_a_higher_level_is_bolder_in_everything_that_the_dial_sets() -> None:
    policies = [policy_at(level) for level in LEVELS]

    assert set(DIAL) == FALLING | RISING
    for name in DIAL:
        values = [getattr(policy, name) for policy in policies]
        assert values == sorted(values, reverse=name in FALLING), name
        assert values[0] != values[-1], name


def test_the_dial_sets_nothing_else() -> None:
    for level in LEVELS:
        dialled = {name: getattr(policy_at(level), name) for name in DIAL}
        assert policy_at(level) == replace(RebalancerPolicy(), aggressiveness=level, **dialled)


def test_a_level_is_in_proportion_to_what_it_changes() -> None:
    base = RebalancerPolicy(tick_s=1, fast_window_s=8.0, max_per_hour=100)

    found = policy_at(1, base=base)

    assert (found.tick_s, found.fast_window_s, found.max_per_hour) == (1, 16.0, 34)


BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")


def a_freeze(schedule: str, duration: str, zone: ZoneInfo | None = None) -> ChangeFreeze:
    return ChangeFreeze(
        text=schedule,
        schedule=parse_schedule(schedule),
        zone=zone or UTC,
        duration=parse_duration(duration),
    )


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("schedule", "duration", "zone", "now", "until"),
    [
        ("0 8 * * mon-fri", "10h", None, "2026-01-05T08:00Z", "2026-01-05T18:00Z"),  # a Monday
        ("0 8 * * mon-fri", "10h", None, "2026-01-05T17:59:59Z", "2026-01-05T18:00Z"),
        ("0 8 * * mon-fri", "10h", None, "2026-01-05T18:00Z", None),
        ("0 8 * * mon-fri", "10h", None, "2026-01-05T07:59:59Z", None),
        ("0 8 * * mon-fri", "10h", None, "2026-01-04T09:00Z", None),
        ("0 8 * * 7", "1h", None, "2026-01-04T08:30Z", "2026-01-04T09:00Z"),
        ("0 8 * * 0", "1h", None, "2026-01-04T08:30Z", "2026-01-04T09:00Z"),
        # Berlin is an hour ahead of UTC in winter, two in summer.
        ("0 8 * * *", "1h", BERLIN, "2026-01-05T07:30Z", "2026-01-05T08:00Z"),
        ("0 8 * * *", "1h", BERLIN, "2026-07-06T06:30Z", "2026-07-06T07:00Z"),
        # From the evening into the next day, whose date differs in the zone as well.
        ("0 22 * * fri", "2d", NEW_YORK, "2026-01-04T02:00Z", "2026-01-05T03:00Z"),
        # Overlapping windows: the later end counts.
        ("*/30 * * * *", "45m", None, "2026-01-05T10:40Z", "2026-01-05T11:15Z"),
        ("0 0 24 12 *", "7d", None, "2026-12-30T23:00Z", "2026-12-31T00:00Z"),
        # Either day field is enough if both are restricted, as in crontab(5).
        ("0 0 1 * mon", "1h", None, "2026-01-05T00:30Z", "2026-01-05T01:00Z"),
        ("0 0 1 * mon", "1h", None, "2026-01-01T00:30Z", "2026-01-01T01:00Z"),
        ("0 0 1 * mon", "1h", None, "2026-01-02T00:30Z", None),
        # Clocks go forward at 02:00 on 2026-03-29 in Berlin: 02:30 is what would be 03:30.
        ("30 2 * * *", "10m", BERLIN, "2026-03-29T01:35Z", "2026-03-29T01:40Z"),
        # And back at 03:00 on 2026-10-25: 02:30 comes twice, and so does the freeze.
        ("30 2 * * *", "10m", BERLIN, "2026-10-25T00:35Z", "2026-10-25T00:40Z"),
        ("30 2 * * *", "10m", BERLIN, "2026-10-25T01:35Z", "2026-10-25T01:40Z"),
        ("0 0 29 2 *", "1d", None, "2028-02-29T12:00Z", "2028-03-01T00:00Z"),
    ],
)
def test_a_freeze_holds_from_its_schedule_for_its_duration(
    schedule: str, duration: str, zone: ZoneInfo | None, now: str, until: str | None
) -> None:
    found = a_freeze(schedule, duration, zone).until(at(now))

    assert found == (at(until) if until else None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "want five fields"),
        ("0 8 * *", "want five fields"),
        ("@daily", "want five fields"),
        ("* " * 101, "want five fields"),
        ("60 8 * * *", "minute is '60'; want values from 0 to 59"),
        ("0 8-6 * * *", "hour is '8-6'; want values from 0 to 23, ranges that ascend"),
        ("0 8 0 * *", "day of month is '0'; want values from 1 to 31"),
        ("0 8 * 13 *", "month is '13'; want values from 1 to 12"),
        ("0 8 * * mox", "day of week is 'mox'; want a number, or one of sun, mon"),
        ("0 8 * * 8", "day of week is '8'; want values from 0 to 7"),
        ("*/0 * * * *", "minute is '*/0'; want values from 0 to 59, ranges that ascend and steps"),
        ("0 8 1,,2 * *", "day of month is '1,,2'; want *, values, ranges and steps"),
        ("0 8 ? * *", "day of month is '?'; want *, values, ranges and steps"),
        ("0 8 jan * *", "day of month is 'jan'; want a number"),
        ("0 8 30 2 *", "day of month is '30'; the months in '2' have 29 at most"),
        ("0 ٣ * * *", "hour is '٣'; want *, values"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_by_its_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_schedule(text)


@pytest.mark.parametrize("text", ["", "8", "h", "1h 30m", "30m1h", "-1h", "1.5h", "8H", "1w", "٣h"])
def test_a_duration_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want days, hours, minutes or seconds"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["59s", "0h", "7d1s", "9999d"])
def test_a_duration_has_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="want 1m to 7d"):
        parse_duration(text)


@given(
    st.sampled_from(["*/15 * * * *", "0 8 * * mon-fri", "30 2 * * *", "5/7 1-23/5 1,15 * sun"]),
    st.timedeltas(min_value=SHORTEST, max_value=LONGEST),
    st.sampled_from(
        [BERLIN, NEW_YORK, ZoneInfo("Asia/Kathmandu"), ZoneInfo("Australia/Lord_Howe")]
    ),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - made aware below
)
def test_a_freeze_holds_exactly_if_it_began_within_its_duration(
    schedule: str, duration: timedelta, zone: ZoneInfo, when: datetime
) -> None:
    now = when.replace(tzinfo=UTC)
    freeze = ChangeFreeze(
        text=schedule, schedule=parse_schedule(schedule), zone=zone, duration=duration
    )

    until = freeze.until(now)

    if until is None:
        shortest = ChangeFreeze(
            text=schedule, schedule=freeze.schedule, zone=zone, duration=SHORTEST
        )
        assert shortest.until(now) is None
    else:
        assert now < until <= now + duration
        start = (until - duration).astimezone(zone)
        assert freeze.schedule.on(start.date())


@given(st.text(max_size=40))
def test_no_text_brings_the_parsers_down(text: str) -> None:
    for parse in (parse_schedule, parse_duration):
        with suppress(ValueError):  # the only error there may be
            parse(text)
