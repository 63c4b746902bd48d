"""The ConfigMap's key: parsed strictly, every mistake reported, and the generated reference."""

import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.aggressiveness import LEVELS, policy_at
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from rebalancer.config import FORMER, KEYS, parse_policy


def test_nothing_written_is_the_default() -> None:
    assert parse_policy("") == RebalancerPolicy()
    assert parse_policy("# only a comment") == RebalancerPolicy()


def test_what_is_written_replaces_the_default() -> None:
    policy = parse_policy("mode: active\nhotRatio: 0.9\nmaxPerHour: 3\nnoticeS: 2.5\n")

    assert policy == replace(
        RebalancerPolicy(), mode=Mode.ACTIVE, hot_ratio=0.9, max_per_hour=3, notice_s=2.5
    )


def test_what_is_left_out_comes_from_what_the_process_was_built_with() -> None:
    base = RebalancerPolicy(tick_s=1, fast_window_s=10)

    assert parse_policy("", base=base) == base
    policy = parse_policy("mode: active\naggressiveness: 5", base=base)
    assert (policy.mode, policy.tick_s, policy.fast_window_s) == (Mode.ACTIVE, 1, 5)


def test_there_are_thirteen_keys() -> None:
    assert len(KEYS) == 13
    assert {known.field for known in KEYS.values()} < {
        field.name for field in fields(RebalancerPolicy)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hotRatios: 0.9", "hotRatios is not a key here; did you mean hotRatio?"),
        ("hot_ratio: 0.9", "hot_ratio is not a key here; did you mean hotRatio?"),
        ("zzz: 1", "zzz is not a key here"),
        ("hotRatio: 80", "hotRatio is 80; want a number from 0.2 to 1"),
        ("hotRatio: '0.9'", "hotRatio is '0.9'; want a number from 0.2 to 1"),
        ("hotRatio: .nan", "hotRatio is nan; want a number from 0.2 to 1"),
        ("hotRatio:", "hotRatio is None; want a number from 0.2 to 1"),
        ("hotRatio: [0.9]", "hotRatio is [0.9]; want a number from 0.2 to 1"),
        ("fastWindowSs: 60", "fastWindowSs is not a key here"),
        ("maxInFlight: 1.5", "maxInFlight is 1.5; want a whole number from 1 to 20"),
        ("maxInFlight: true", "maxInFlight is True; want a whole number from 1 to 20"),
        ("mode: on", "mode is True; want one of active, recommend, dryRun, off"),
        ("mode: Active", "mode is 'Active'; want one of active, recommend, dryRun, off"),
        ("maxPerHour: 010", "010 is no decimal number"),
        ("changeFreezes: [" + 20_000 * "{schedule: '* * * * *', duration: 1h}," + "]", "at most"),
        ("paused: 1", "paused is 1; want true or false"),
        ("aggressiveness: 6", "aggressiveness is 6; want a whole number from 1 to 5"),
        ("aggressiveness: true", "aggressiveness is True; want a whole number from 1 to 5"),
        ("resetBreakersAt: soon", "resetBreakersAt is 'soon'; want a time with an offset"),
        ("resetBreakersAt: 2026-01-31", "resetBreakersAt is datetime.date(2026, 1, 31); want a"),
        ("resetBreakersAt: 2026-01-31T12:00:00", "want a time with an offset, e.g. 2026-01-31T"),
        (
            "resetBreakersAt: 0001-01-01T00:00:00+14:00",
            "resetBreakersAt is datetime.datetime(1, 1, 1, 0, 0, tzinfo=datetime.timezone(",
        ),
        ("resetBreakersAt: '9999-12-31T23:00-14:00'", "resetBreakersAt is "),
        ("changeFreezes: never", "changeFreezes is 'never'; want a list of at most 20 freezes"),
        ("changeFreezes: [8]", "changeFreezes[0] is 8; want schedule, duration and timeZone"),
        ("changeFreezes: [{}]", "changeFreezes[0].schedule is None; want a text"),
        (
            "changeFreezes: [{schedule: 0 8 * * *, duration: 8}]",
            "changeFreezes[0].duration is 8; want a text",
        ),
        (
            "changeFreezes: [{schedule: 0 8 * * *, duration: 8 hours}]",
            "changeFreezes[0].duration is '8 hours'; want days, hours, minutes or seconds",
        ),
        (
            "changeFreezes: [{schedule: 0 25 * * *, duration: 8h}]",
            "changeFreezes[0].schedule is '0 25 * * *'; hour is '25'; want values from 0 to 23",
        ),
        (
            "changeFreezes: [{schedule: 0 8 * * *, duration: 8h, timeZone: Mars/Olympus}]",
            "changeFreezes[0].timeZone is 'Mars/Olympus'; want a name of the IANA time zone",
        ),
        (
            "changeFreezes: [{schedule: 0 8 * * *, duration: 8h, timeZone: ../passwd}]",
            "changeFreezes[0].timeZone is '../passwd'; want a name of the IANA time zone",
        ),
        (
            "changeFreezes: [{schedule: 0 8 * * *, duration: 8h, timezone: UTC}]",
            "changeFreezes[0]: timezone is not a key here; did you mean timeZone?",
        ),
        ("- a list", "found list; want a mapping"),
        ("{", "not YAML"),
        ("hotRatio: 0.9\nhotRatio: 0.8", "the key 'hotRatio' appears twice"),
    ],
)
def test_a_mistake_is_named_as_it_was_written(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_policy(text)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"nonsense is not .*; mode is 'maybe'.*; hotRatio is 7"):
        parse_policy("hotRatio: 7\nnonsense: 1\nmode: maybe")


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_sets_what_is_left_out_and_what_is_written_wins(level: int) -> None:
    policy = parse_policy(f"maxPerHour: 7\naggressiveness: {level}\nmode: recommend")

    assert policy == replace(policy_at(level), max_per_hour=7, mode=Mode.RECOMMEND)


def test_freezes_have_a_time_zone_which_is_utc_if_none_is_named() -> None:
    policy = parse_policy(
        "changeFreezes:\n"
        "- {schedule: '0 8 * * mon-fri', duration: 10h, timeZone: Europe/Berlin}\n"
        "- {schedule: '0 0 24 12 *', duration: 3d}\n"
    )

    assert [freeze.text for freeze in policy.change_freezes] == ["0 8 * * mon-fri", "0 0 24 12 *"]
    assert [str(freeze.zone) for freeze in policy.change_freezes] == ["Europe/Berlin", "UTC"]
    assert policy.change_freezes[0].until(datetime(2026, 7, 6, 6, 30, tzinfo=UTC)) == datetime(
        2026, 7, 6, 16, tzinfo=UTC
    )


def test_breakers_are_reset_at_a_time_whatever_its_offset() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)

    for written in ("2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00", "'2026-01-31T12:00Z'"):
        assert parse_policy(f"resetBreakersAt: {written}").reset_breakers_at == noon


def test_it_is_paused_beside_any_mode() -> None:
    policy = parse_policy("mode: active\npaused: true")

    assert (policy.mode, policy.paused) == (Mode.ACTIVE, True)


def test_a_bare_off_is_off() -> None:
    assert parse_policy("mode: off").mode is Mode.OFF
    assert parse_policy("mode: 'off'").mode is Mode.OFF


@given(st.text(max_size=60) | st.sampled_from(["hotRatio: 1e400", "mode: [", "? : x", "\x00"]))
def test_no_text_brings_it_down(text: str) -> None:
    try:
        assert parse_policy(text).mode in Mode
    except ValueError:
        return  # the only error there may be


def test_a_policy_has_a_short_name_of_its_own() -> None:
    frozen = "changeFreezes: [{schedule: 0 8 * * *, duration: 8h, timeZone: Asia/Tokyo}]"
    assert RebalancerPolicy().digest == RebalancerPolicy().digest
    assert parse_policy(frozen).digest == parse_policy(frozen).digest
    assert parse_policy(frozen).digest != RebalancerPolicy().digest
    assert RebalancerPolicy().digest != RebalancerPolicy(tick_s=16).digest
    assert len(RebalancerPolicy().digest) == 12


def test_of_two_budgets_the_one_that_is_left_out_makes_room_for_the_other() -> None:
    small, large = parse_policy("maxPerDay: 5"), parse_policy("maxPerHour: 200")

    assert (small.max_per_hour, small.max_per_day) == (5, 5)
    assert (large.max_per_hour, large.max_per_day) == (200, 200)


# Whatever an earlier version took, keys and values.
OF_EARLIER_VERSIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(sorted(key for keys in FORMER.values() for key in keys), st.floats()),
        "mode": st.sampled_from([mode.value for mode in Mode]),
        "hotRatio": st.floats(0.2, 1),
        "maxPerHour": st.integers(1, 40),
        "maxPerDay": st.integers(1, 40),
        "noticeS": st.floats(0, 300),
        "paused": st.booleans(),
    },
)


@given(OF_EARLIER_VERSIONS)
def test_a_config_map_of_an_earlier_version_keeps_its_meaning(written: dict[str, Any]) -> None:
    kept = {key: value for key, value in written.items() if key in KEYS}

    policy = parse_policy(yaml.safe_dump(written))

    assert policy.mode.value == written.get("mode", "dryRun")
    assert policy.ignored_keys == tuple(sorted(written.keys() - kept.keys()))
    assert replace(policy, ignored_keys=()) == parse_policy(yaml.safe_dump(kept))


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match=r"hotRatio is 'x.*; want a number") as refused:
        parse_policy(f"hotRatio: {'x' * 9999}\nmode: {'y' * 9999}")

    assert len(str(refused.value)) < 400
