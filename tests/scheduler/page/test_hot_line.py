"""The rebalancer's line for heat, read from its configuration."""

import pytest

from fracgpu.disruption.aggressiveness import policy_at
from scheduler.page.hot_line import DEFAULT, parse_hot_ratio


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("", DEFAULT),
        ("mode: active", DEFAULT),
        ("hotRatio: 0.7", 0.7),
        ("aggressiveness: 1", policy_at(1).hot_ratio),
        ("aggressiveness: 5\nhotRatio: 0.9", 0.9),
        ("aggressiveness: 99", DEFAULT),
    ],
)
def test_the_line_is_the_rebalancers(text: str, ratio: float) -> None:
    assert parse_hot_ratio(text) == ratio


@pytest.mark.parametrize("text", ["hotRatio: high", "hotRatio: 2", "hotRatio: true", "- 1"])
def test_a_line_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hotRatio is .*; want a number|want a mapping"):
        parse_hot_ratio(text)
