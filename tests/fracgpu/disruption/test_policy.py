"""The policy: its defaults are consistent, and all mistakes are reported."""

from dataclasses import replace
from typing import Any

import pytest

from fracgpu.disruption.policy import Mode, RebalancerPolicy, Tunable, tunables


def test_the_defaults_are_right_and_change_nothing_in_the_cluster() -> None:
    policy = RebalancerPolicy()

    assert policy.mistakes() == ()
    assert policy.mode is Mode.DRY_RUN


@pytest.mark.parametrize("found", tunables(), ids=lambda value: value.name)
def test_every_figure_has_a_meaning_and_a_default_inside_its_range(
    found: Tunable,
) -> None:
    assert found.meaning
    assert found.low <= found.default <= found.high
    assert found.low < found.high


@pytest.mark.parametrize("found", tunables(), ids=lambda value: value.name)
def test_a_figure_outside_its_range_is_named(found: Tunable) -> None:
    change: dict[str, Any] = {found.name: found.high * 2 + 1}
    above = replace(RebalancerPolicy(), **change)

    assert any(text.startswith(f"{found.name} is ") for text in above.mistakes())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clear_ratio": 0.8}, "clear_ratio is 0.8; want less than hot_ratio, 0.8"),
        ({"ceiling_ratio": 0.65}, "ceiling_ratio is 0.65; want less than clear_ratio, 0.65"),
        ({"min_pod_busy_ratio": 0.6}, "min_pod_busy_ratio is 0.6; want less than ceiling_ratio"),
        ({"slow_window_s": 599.0}, "slow_window_s is 599; want at least fast_window_s, 600"),
        ({"forecast_window_s": 60.0}, "forecast_window_s is 60; want at least fast_window_s"),
        ({"step_s": 121.0}, "step_s is 121; want at most a fifth of fast_window_s, 600"),
        ({"scrape_interval_s": 130.0}, "scrape_interval_s is 130; want at most a fifth"),
        ({"stale_after_s": 29.0}, "stale_after_s is 29; want at least twice scrape_interval_s"),
        ({"cordon_s": 29.0}, "cordon_s is 29; want at least twice tick_s, 15"),
        ({"plan_ttl_s": 20.0}, "plan_ttl_s is 20; want at least twice tick_s, 15"),
    ],
)
def test_figures_that_contradict_each_other_are_named(changes: dict[str, Any], named: str) -> None:
    found = replace(RebalancerPolicy(), **changes).mistakes()

    assert any(text.startswith(named) for text in found), found
