"""The dial: every level is a sound policy, and each is bolder than the one before."""

from dataclasses import replace

import pytest

from fracgpu.disruption.aggressiveness import DEFAULT_LEVEL, LEVELS, policy_at
from fracgpu.disruption.policy import RebalancerPolicy, tunables

# Where a bolder level has the smaller value; where it has the larger one.
FALLING = (
    "hot_ratio",
    "clear_ratio",
    "fast_window_s",
    "slow_window_s",
    "fast_hot_ratio",
    "slow_hot_ratio",
    "hold_cycles",
    "settle_s",
    "min_pod_busy_ratio",
    "min_pod_age_s",
    "owner_cooldown_s",
    "card_cooldown_s",
    "return_cooldown_s",
    "startup_grace_s",
)
RISING = (
    "max_in_flight",
    "max_in_flight_per_node",
    "max_per_hour",
    "max_per_day",
    "max_per_namespace_per_hour",
    "max_per_owner_per_hour",
    "max_per_owner_per_day",
    "max_per_pod_per_hour",
    "max_cordoned_ratio",
    "breaker_aborts",
    "breaker_useless_ratio",
)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_within_all_ranges_and_contradicts_itself_nowhere(level: int) -> None:
    assert policy_at(level).mistakes() == ()
    assert policy_at(level).aggressiveness == level


def test_the_middle_level_is_the_defaults() -> None:
    assert policy_at(DEFAULT_LEVEL) == RebalancerPolicy()


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_whole_numbers_where_they_are_wanted(level: int) -> None:
    policy = policy_at(level)

    for tunable in tunables():
        if tunable.whole:
            assert isinstance(getattr(policy, tunable.name), int), tunable.name


def test_a_higher_level_is_bolder_in_every_way() -> None:
    policies = [policy_at(level) for level in LEVELS]

    for name in (*FALLING, *RISING):
        values = [getattr(policy, name) for policy in policies]
        assert values == sorted(values, reverse=name in FALLING), name
        assert values[0] != values[-1], name


def test_the_dial_sets_thirty_values() -> None:
    lowest, highest = policy_at(LEVELS[0]), policy_at(LEVELS[-1])

    changed = [
        tunable.name
        for tunable in tunables()
        if getattr(lowest, tunable.name) != getattr(highest, tunable.name)
    ]

    assert len(changed) >= 30


def test_no_level_changes_what_is_no_matter_of_boldness() -> None:
    for level in LEVELS:
        policy = policy_at(level)
        assert policy.mode is RebalancerPolicy().mode
        assert not policy.paused
        assert replace(policy, aggressiveness=3).tick_s == RebalancerPolicy().tick_s
