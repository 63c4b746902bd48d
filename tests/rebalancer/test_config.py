"""The ConfigMap's key: parsed strictly, every mistake reported, and the generated reference."""

import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.aggressiveness import LEVELS, policy_at
from fracgpu.disruption.policy import Mode, RebalancerPolicy, tunables
from rebalancer.config import camel, parse_policy, policy_hash, reference


def test_nothing_written_is_the_default() -> None:
    assert parse_policy("") == RebalancerPolicy()
    assert parse_policy("# only a comment") == RebalancerPolicy()


def test_what_is_written_replaces_the_default() -> None:
    policy = parse_policy("mode: active\nhotRatio: 0.9\nmaxPerHour: 3\ntickS: 2.5\n")

    assert policy == replace(
        RebalancerPolicy(), mode=Mode.ACTIVE, hot_ratio=0.9, max_per_hour=3, tick_s=2.5
    )


def test_every_default_can_be_written_down() -> None:
    written = {camel(tunable.name): tunable.default for tunable in tunables()}

    assert parse_policy(yaml.safe_dump(written)) == RebalancerPolicy()
    others = {
        "mode",
        "make_room",
        "paused",
        "aggressiveness",
        "change_freezes",
        "reset_breakers_at",
        "namespaces",
    }
    assert {tunable.name for tunable in tunables()} == {
        field.name for field in fields(RebalancerPolicy)
    } - others


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
        ("holdCycles: 1.5", "holdCycles is 1.5; want a whole number from 0 to 20"),
        ("holdCycles: true", "holdCycles is True; want a whole number from 0 to 20"),
        ("mode: on", "mode is True; want one of active, recommend, dryRun, off"),
        ("mode: Active", "mode is 'Active'; want one of active, recommend, dryRun, off"),
        ("clearRatio: 0.85", "clearRatio is 0.85; want less than hotRatio, 0.8"),
        ("ceilingRatio: 0.7", "ceilingRatio is 0.7; want less than clearRatio, 0.65"),
        ("fastWindowS: 60", "stepS is 30; want at most a fifth of fastWindowS, 60"),
        ("settleS: 1", "settleS is 1; want at least fastWindowS, 600"),
        ("memoryWindowS: 60", "memoryWindowS is 60; want at least forecastWindowS, 3600"),
        ("maxPerOwnerPerHour: 4", "maxPerOwnerPerHour is 4; want at most maxPerOwnerPerDay, 3"),
        ("maxPerHour: 010", "010 is no decimal number"),
        ("changeFreezes: [" + 20_000 * "{schedule: '* * * * *', duration: 1h}," + "]", "at most"),
        ("paused: 1", "paused is 1; want true or false"),
        ("aggressiveness: 6", "aggressiveness is 6; want a whole number from 1 to 5"),
        ("aggressiveness: true", "aggressiveness is True; want a whole number from 1 to 5"),
        (
            "aggressiveness: 1\nhotRatio: 0.7",
            "clearRatio is 0.715; want less than hotRatio, 0.7 (aggressiveness 1 set what is not",
        ),
        ("resetBreakersAt: soon", "resetBreakersAt is 'soon'; want a time with an offset"),
        ("resetBreakersAt: 2026-01-31", "resetBreakersAt is datetime.date(2026, 1, 31); want a"),
        ("resetBreakersAt: 2026-01-31T12:00:00", "want a time with an offset, e.g. 2026-01-31T"),
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
    with pytest.raises(ValueError, match=r"nonsense is not .*; hotRatio is 7.*; mode is 'maybe'"):
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
        policy = parse_policy(text)
    except ValueError:
        return  # the only error there may be
    assert policy.mistakes() == ()


def test_a_policy_has_a_short_name_of_its_own() -> None:
    frozen = "changeFreezes: [{schedule: 0 8 * * *, duration: 8h, timeZone: Asia/Tokyo}]"
    assert policy_hash(RebalancerPolicy()) == policy_hash(RebalancerPolicy())
    assert policy_hash(parse_policy(frozen)) == policy_hash(parse_policy(frozen))
    assert policy_hash(parse_policy(frozen)) != policy_hash(RebalancerPolicy())
    assert policy_hash(RebalancerPolicy()) != policy_hash(RebalancerPolicy(tick_s=16))
    assert len(policy_hash(RebalancerPolicy())) == 12


def test_the_reference_lists_every_key_with_default_and_range() -> None:
    table = reference()

    assert "| `mode` | how far the rebalancer may go | `dryRun` |" in table
    assert "| `hotRatio` | busy share above which a sample is hot | 0.8 | 0.2\u20131 |" in table
    assert "| `tickS` | pause between two cycles | 15 s | 1\u2013300 |" in table
    assert " | 256 MiB | 0\u201365536 |" in table
    assert all(f"| `{camel(tunable.name)}` |" in table for tunable in tunables())


def test_the_documentation_holds_the_reference_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rebalancer-settings.md").read_text()

    assert page.endswith(reference()), "write rebalancer.config.reference() at the end of the page"


def test_what_is_learnt_now_is_ignored_and_the_rest_of_the_policy_counts() -> None:
    old = "mode: active\nscrapeIntervalS: 30\nstaleAfterS: 75\nhotRatio: 0.9\n"

    assert parse_policy(old) == parse_policy("mode: active\nhotRatio: 0.9")


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match=r"hotRatio is 'x.*; want a number") as refused:
        parse_policy(f"hotRatio: {'x' * 9999}\nmode: {'y' * 9999}")

    assert len(str(refused.value)) < 400
