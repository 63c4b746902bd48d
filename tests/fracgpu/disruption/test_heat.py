"""Heat and reading quality: unknown is never cool, and a card is hot only if both windows are."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
    Heat,
    ReadingQuality,
    Unrelievable,
    advance,
    blindness,
    fresh_ratio,
    is_hot_now,
    unrelievable,
)
from fracgpu.disruption.policy import RebalancerPolicy
from tests.fakes.clock import NOON
from tests.support.rebalancing import a_reading, usage_of

CARD = CardUuid("GPU-a")
POLICY = RebalancerPolicy(hold_cycles=1, settle_s=600)
TICK = timedelta(seconds=15)


def after(
    *readings: CardReading | None,
    begin: Heat = Heat.COOL,
    relieving: bool = False,
    tick: timedelta = TICK,
) -> CardHeat:
    """Return the heat after one reading a cycle."""
    heat, now = CardHeat(heat=begin, since=NOON), NOON
    for reading in readings:
        now += tick
        usage = usage_of(CARD, reading)
        heat = advance(heat, usage, relieving=relieving, policy=POLICY, now=now)
    return heat


HOT, CALM = a_reading(0.95), a_reading(0.2)
LUKEWARM = a_reading(0.7)
FAST_ONLY = replace(HOT, slow_hot_ratio=0.1)
SLOW_ONLY = replace(LUKEWARM, fast_hot_ratio=0.1, slow_hot_ratio=0.9)
# A kernel is always running, and most multiprocessors have nothing to do.
BUSY_WITH_LITTLE = replace(HOT, active_ratio=0.3)
BUSY_WITH_MUCH = replace(HOT, active_ratio=0.6)


@pytest.mark.parametrize(
    ("name", "readings", "begin", "heat"),
    [
        ("calm stays cool", [CALM], Heat.COOL, Heat.COOL),
        ("the short window warms", [FAST_ONLY], Heat.COOL, Heat.WARMING),
        ("one hot cycle is not enough", [HOT], Heat.COOL, Heat.WARMING),
        ("held for one more cycle it is hot", [HOT, HOT], Heat.COOL, Heat.HOT),
        ("the short window alone never makes it hot", [FAST_ONLY] * 20, Heat.COOL, Heat.WARMING),
        ("a spike passes", [HOT, CALM], Heat.COOL, Heat.COOL),
        ("doubt breaks the row", [HOT, None, HOT], Heat.COOL, Heat.WARMING),
        ("hot stays hot while one window says so", [SLOW_ONLY], Heat.HOT, Heat.HOT),
        ("hot settles when neither window says so", [LUKEWARM], Heat.HOT, Heat.SETTLING),
        ("busy without work is not hot", [BUSY_WITH_LITTLE] * 9, Heat.COOL, Heat.COOL),
        ("busy with work is hot", [BUSY_WITH_MUCH] * 2, Heat.COOL, Heat.HOT),
        ("hot without work settles", [BUSY_WITH_LITTLE], Heat.HOT, Heat.SETTLING),
        ("hot settles below the clear line", [CALM], Heat.HOT, Heat.SETTLING),
        ("settling goes on", [CALM] * 10, Heat.SETTLING, Heat.SETTLING),
        ("a lukewarm card is never settled", [LUKEWARM] * 100, Heat.SETTLING, Heat.SETTLING),
        ("calm for ten minutes is cool", [CALM] * 42, Heat.SETTLING, Heat.COOL),
        ("heat during settling waits", [HOT] * 10, Heat.SETTLING, Heat.SETTLING),
        ("heat after settling is hot again", [HOT] * 41, Heat.SETTLING, Heat.HOT),
        ("a hot card that is not measured stays hot", [None] * 100, Heat.HOT, Heat.HOT),
        ("a cool card that is not measured stays", [None] * 100, Heat.COOL, Heat.COOL),
    ],
)
def test_heat_follows_its_table(
    name: str, readings: list[CardReading | None], begin: Heat, heat: Heat
) -> None:
    assert after(*readings, begin=begin).heat is heat, name


def test_a_move_makes_a_hot_card_relieving_until_it_ends() -> None:
    assert after(HOT, begin=Heat.HOT, relieving=True).heat is Heat.RELIEVING
    assert after(HOT, HOT, begin=Heat.RELIEVING, relieving=True).heat is Heat.RELIEVING
    assert after(HOT, begin=Heat.RELIEVING, relieving=False).heat is Heat.SETTLING


def test_a_gap_in_the_measurements_begins_the_calm_anew() -> None:
    almost = after(*[CALM] * 40, None, CALM, begin=Heat.SETTLING)

    assert almost.heat is Heat.SETTLING


def test_an_illegal_change_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="cool -> hot"):
        CardHeat(heat=Heat.COOL, since=NOON).to(Heat.HOT, now=NOON)


def test_a_reading_and_trust_come_together() -> None:
    with pytest.raises(AssertionError):
        CardUsage(card=CARD, quality=ReadingQuality.OK)
    with pytest.raises(AssertionError):
        CardUsage(card=CARD, quality=ReadingQuality.STALE, reading=CALM)


@given(st.lists(st.sampled_from([HOT, CALM, LUKEWARM, FAST_ONLY, None]), max_size=30))
def test_no_card_becomes_hot_without_two_hot_cycles_in_a_row(
    readings: list[CardReading | None],
) -> None:
    heat, now = CardHeat(heat=Heat.COOL, since=NOON), NOON
    for before, reading in zip([None, *readings], readings, strict=False):
        now += TICK
        was = heat.heat
        heat = advance(heat, usage_of(CARD, reading), relieving=False, policy=POLICY, now=now)
        if heat.heat is Heat.HOT and was is not Heat.HOT:
            assert reading is not None
            assert is_hot_now(reading, POLICY)
            assert before is not None
            assert is_hot_now(before, POLICY)


@given(
    st.lists(st.sampled_from([HOT, CALM, LUKEWARM, FAST_ONLY]), max_size=30),
    st.integers(1, 20),
)
def test_an_unknown_reading_never_cools_a_card(readings: list[CardReading], gap: int) -> None:
    before = after(*readings)

    heat, now = before, NOON + TICK * len(readings)
    for _ in range(gap):
        now += timedelta(hours=1)
        heat = advance(heat, usage_of(CARD, None), relieving=False, policy=POLICY, now=now)

    assert heat.heat is before.heat


@pytest.mark.parametrize(
    ("level", "pods", "why"),
    [
        (0.9, {"a": 0.45, "b": 0.45}, None),
        (0.9, {"a": 0.9}, Unrelievable.ONE_POD_ALONE),
        (0.9, {"a": 0.9, "b": 0.0}, Unrelievable.ONE_POD_ALONE),
        (0.9, {}, Unrelievable.NOT_ATTRIBUTED),
        (0.9, {"a": 0.2, "b": 0.2}, Unrelievable.NOT_ATTRIBUTED),
        (0.9, {"a": 0.85, "b": 0.05}, Unrelievable.NO_USEFUL_POD),
        (0.9, {f"pod-{n}": 0.09 for n in range(10)}, Unrelievable.NO_USEFUL_POD),
        (0.9, {"a": 0.8, "b": 0.1}, None),
    ],
)
def test_a_card_is_relievable_when_moving_one_of_several_pods_would_help(
    level: float, pods: dict[str, float], why: Unrelievable | None
) -> None:
    assert unrelievable(a_reading(level, pods=pods), POLICY) is why


def test_a_cycle_is_blind_when_too_few_cards_have_trusted_readings() -> None:
    cards = frozenset(CardUuid(f"GPU-{n}") for n in range(10))
    usage = {uuid: usage_of(uuid, CALM) for uuid in cards}
    missing = sorted(cards)
    usage |= {uuid: usage_of(uuid, None) for uuid in missing[:2]}

    assert blindness(usage, cards, POLICY) == ""
    usage[missing[2]] = usage_of(missing[2], None)
    assert (
        blindness(usage, cards, POLICY)
        == "7 of 10 cards have trusted readings (no sample of a card)"
    )
    assert blindness({}, cards, POLICY).startswith("0 of 10 cards")


def test_a_cycle_is_blind_when_too_many_cards_bring_nothing_new() -> None:
    cards = [CardUuid(f"GPU-{n}") for n in range(10)]
    usage = {uuid: usage_of(uuid, CALM) for uuid in cards}
    usage |= {uuid: usage_of(uuid, replace(CALM, repeating=True)) for uuid in cards[:3]}

    assert blindness(usage, frozenset(cards[2:]), POLICY) == ""
    assert (
        blindness(usage, frozenset(cards), POLICY)
        == "10 of 10 cards have trusted readings (3 bring nothing new)"
    )


def test_without_cards_there_is_nothing_to_be_blind_to() -> None:
    assert fresh_ratio({}, frozenset()) == 1.0
    assert blindness({}, frozenset(), POLICY) == ""
