"""The key ``placement`` of the ConfigMap."""

import pytest

from component.placement_config import parse_strategy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_has_a_name(strategy: Strategy) -> None:
    assert parse_strategy(f"strategy: {strategy.value}\n") is strategy


def test_what_is_not_said_is_the_default() -> None:
    assert parse_strategy("") is DEFAULT_STRATEGY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "strategy: packed",
            "packed; want one of pack, spread, .*; did you mean pack",
        ),
        ("strategy: 3", "strategy is 3; want one of"),
        ("strategy: [pack]", "want one of"),
        ("strategy:", "strategy is None"),
        ("Strategy: pack", "Strategy is not a key here; did you mean strategy"),
        ("pack", "want a mapping"),
        ("strategy: pack\nstrategy: spread", "appears twice"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_strategy(text)
