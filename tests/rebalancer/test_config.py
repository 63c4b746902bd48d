"""The ConfigMap's key: parsed strictly, every mistake reported, and the generated reference."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from component.placement_config import DEFAULT, parse_strategy
from fracgpu.disruption.policy import Mode, RebalancerPolicy, tunables
from fracgpu.request.need import Strategy
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
    assert len(written) == len(fields(RebalancerPolicy)) - 1  # all but the mode


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
        ("mode: on", "mode is True; want one of active, dryRun, off"),
        ("mode: Active", "mode is 'Active'; want one of active, dryRun, off"),
        ("clearRatio: 0.85", "clearRatio is 0.85; want less than hotRatio, 0.8"),
        ("ceilingRatio: 0.7", "ceilingRatio is 0.7; want less than clearRatio, 0.65"),
        ("fastWindowS: 60", "scrapeIntervalS is 15; want at most a fifth of fastWindowS, 60"),
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
    assert policy_hash(RebalancerPolicy()) == policy_hash(RebalancerPolicy())
    assert policy_hash(RebalancerPolicy()) != policy_hash(RebalancerPolicy(tick_s=16))
    assert len(policy_hash(RebalancerPolicy())) == 12


def test_the_reference_lists_every_key_with_default_and_range() -> None:
    table = reference()

    assert "| `mode` | how far the rebalancer may go | `dryRun` |" in table
    assert "| `hotRatio` | busy share above which a sample is hot | 0.8 | 0.2 to 1 |" in table
    assert all(f"| `{camel(tunable.name)}` |" in table for tunable in tunables())


def test_the_documentation_holds_the_reference_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rebalancer.md").read_text()

    assert page.endswith(reference()), "write rebalancer.config.reference() at the end of the page"


def test_the_strategy_is_the_schedulers_and_what_names_none_is_refused() -> None:
    assert parse_strategy("strategy: least-waste") is Strategy.LEAST_WASTE
    assert parse_strategy("") is DEFAULT is Strategy.LEAST_WASTE
    for text in ("strategy: sideways", "strategy: [pack]", "pack", "stategy: pack"):
        with pytest.raises(ValueError, match=r"."):
            parse_strategy(text)


def test_a_flood_of_unknown_keys_is_a_message_of_bounded_length() -> None:
    text = "\n".join(f"{'mode' * 30}{n}: 1" for n in range(2000))

    with pytest.raises(ValueError, match="1995 more keys are not known here either") as refused:
        parse_policy(text)

    assert len(str(refused.value)) < 700


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match=r"hotRatio is 'x.*; want a number") as refused:
        parse_policy(f"hotRatio: {'x' * 9999}\nmode: {'y' * 9999}")

    assert len(str(refused.value)) < 400
