import string
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from component.config_keys import KEYS, refuse_unknown_keys
from component.placement_config import parse_overcommit, parse_strategy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy

WORDS = st.text(string.ascii_letters)


def test_every_key_that_a_role_reads_is_known_and_any_may_be_left_out() -> None:
    refuse_unknown_keys(KEYS)
    refuse_unknown_keys([])


def test_every_unknown_key_is_named_with_what_was_probably_meant() -> None:
    with pytest.raises(ValueError, match="colour is not a key here; rebalance is not") as refused:
        refuse_unknown_keys(["rebalance", "placement", "colour"])

    assert str(refused.value) == (
        "colour is not a key here; rebalance is not a key here; did you mean rebalancer?; "
        "want only admission, placement, pools, rebalancer, wiring"
    )


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_can_be_the_clusters(strategy: Strategy) -> None:
    assert parse_strategy(f"strategy: {strategy.value}") is strategy


def test_what_is_not_said_is_the_default_and_what_names_none_is_refused() -> None:
    assert parse_strategy("") is DEFAULT_STRATEGY is Strategy.LEAST_WASTE
    for text in ("strategy: sideways", "strategy: [pack]", "pack", "stategy: pack"):
        with pytest.raises(ValueError, match=r"."):
            parse_strategy(text)


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        ({"strategy": "packed"}, "strategy is packed; want one of pack, .*; did you mean pack"),
        ({"strategy": 3}, "strategy is 3; want one of"),
        ({"strategy": None}, "strategy is None; want one of"),
        ({"stategy": "pack"}, "stategy is not a key here; did you mean strategy"),
        (
            {"a": 1, "strategy": "b"},
            "a is not a key here; want only strategy, overcommit; strategy is b",
        ),
    ],
)
def test_every_mistake_is_named(placement: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_strategy(yaml.safe_dump(placement))


@given(st.dictionaries(WORDS, WORDS | st.integers() | st.none(), max_size=3))
def test_nothing_but_a_strategy_comes_out(placement: dict[str, object]) -> None:
    try:
        found = parse_strategy(yaml.safe_dump(placement))
    except ValueError:
        return
    assert found.value == placement.get("strategy", DEFAULT_STRATEGY.value)


def test_a_long_value_is_neither_compared_nor_repeated_whole() -> None:
    with pytest.raises(ValueError, match=r"strategy is p+…; want") as refused:
        parse_strategy(f"strategy: {'p' * 50_000}")

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "times"),
    [("", 1), ("strategy: pack", 1), ("overcommit: 1.1", Fraction(11, 10)), ("overcommit: 10", 10)],
)
def test_how_far_limits_may_exceed_a_card(text: str, times: int | Fraction) -> None:
    assert parse_overcommit(text) == times
    parse_strategy(text)


@pytest.mark.parametrize(
    "value",
    ["0.9", "11", "true", "'2'", ".nan", ".inf", "-.inf", "[2]", "null", f"1{'0' * 400}"],
)
def test_what_is_no_overcommitment_is_refused_by_all_who_read_the_key(value: str) -> None:
    for parse in (parse_overcommit, parse_strategy):
        with pytest.raises(ValueError, match="overcommit is"):
            parse(f"overcommit: {value}")
