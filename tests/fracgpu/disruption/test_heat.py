"""Heat and reading quality: unknown is never cool, and a card is hot only if both windows are."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import (
    DisruptionState,
    is_losing,
    needed_history,
)
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
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.disruption.verification import Verification, verify, verify_room
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_node,
    a_past_move,
    a_placed_pod,
    a_reading,
    two_busy_pods,
    usage_of,
)

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


def test_idle_cards_that_read_the_same_for_hours_make_no_cycle_blind() -> None:
    cards = frozenset(CardUuid(f"GPU-{n}") for n in range(10))

    assert blindness({uuid: usage_of(uuid, UNCHANGED) for uuid in cards}, cards, POLICY) == ""


def test_without_cards_there_is_nothing_to_be_blind_to() -> None:
    assert fresh_ratio({}, frozenset()) == 1.0
    assert blindness({}, frozenset(), POLICY) == ""


IDLE = a_reading(0.05)


def bears(
    state: DisruptionState,
    *,
    busy: float = 0.3,
    mib: int = 1,
    losing: bool = False,
) -> bool:
    cool = state.cool_cards
    cells = cool.with_room(busy_ratio=busy, model="A30", free_mib=mib)
    cells &= cool.measured(losing=losing, policy=ACTIVE)
    row, column = state.index.places(state.snapshot)[COOL_CARD]
    assert cells.sum() <= 1, "the hot card is never one"
    return bool(cells[row, column])


def test_a_cool_card_bears_a_pod_up_to_its_whole_time() -> None:
    state = a_disruption_state()

    assert bears(state, busy=0.94)
    assert not bears(state, busy=0.96)
    assert bears(state, mib=24_000)
    assert not bears(state, mib=24_001)


@pytest.mark.parametrize(
    "reading",
    [None, replace(IDLE, repeating=True), a_reading(0.71)],
)
def test_a_card_that_is_not_known_to_be_cool_bears_nothing(reading: CardReading | None) -> None:
    assert not bears(a_disruption_state(readings={COOL_CARD: reading}))


UNCHANGED = replace(a_reading(0.0), unchanged=True)


def test_a_card_that_may_be_idle_or_its_exporter_frozen_bears_a_pod_while_it_is_empty() -> None:
    pods = (*two_busy_pods(), a_placed_pod("resident", COOL_CARD, node="n2"))
    shared = replace(a_node("n2", COOL_CARD), foreign={COOL_CARD: Mib(500)})
    foreign = a_disruption_state(
        nodes=[a_node("n1", HOT_CARD), shared], readings={COOL_CARD: UNCHANGED}
    )

    assert bears(a_disruption_state(readings={COOL_CARD: UNCHANGED}))
    assert not bears(a_disruption_state(readings={COOL_CARD: UNCHANGED}, pods=pods))
    assert bears(a_disruption_state(readings={COOL_CARD: a_reading(0.0)}, pods=pods))
    assert not bears(foreign)


@pytest.mark.parametrize("heat", [heat for heat in Heat if heat is not Heat.COOL])
def test_a_card_in_any_other_heat_bears_nothing(heat: Heat) -> None:
    assert not bears(a_disruption_state(heat={COOL_CARD: heat}))


def test_another_model_is_no_target() -> None:
    state = a_disruption_state()

    assert not state.cool_cards.with_room(busy_ratio=0.1, model="H100", free_mib=1).any()


def with_cool(*, history_ratio: float = 1.0) -> DisruptionState:
    reading = replace(IDLE, history_ratio=history_ratio)
    return a_disruption_state(readings={COOL_CARD: reading})


def test_a_card_bears_a_pod_once_the_forecast_window_has_been_measured() -> None:
    assert bears(with_cool(history_ratio=0.8))
    assert not bears(with_cool(history_ratio=0.79))


def test_while_work_is_lost_a_card_bears_a_pod_once_the_long_window_has_been_measured() -> None:
    assert bears(with_cool(history_ratio=0.4), losing=True)
    assert not bears(with_cool(history_ratio=0.39), losing=True)


def test_the_card_that_was_measured_longest_is_a_target_first() -> None:
    cool = with_cool(history_ratio=0.31).cool_cards
    every = np.ones(cool.history.shape, np.bool_)

    def why(*, losing: bool) -> str:
        return cool.why_not_measured(every, losing=losing, policy=ACTIVE)

    assert why(losing=False).endswith("the first can be a target in 30 min")
    assert why(losing=True).endswith("the first can be a target in 6 min")


@given(
    forecast_s=st.floats(10, 86400),
    slow_s=st.floats(10, 21600),
    coverage=st.floats(0.1, 1.0),
    losing=st.booleans(),
)
def test_some_history_is_always_needed_and_never_more_than_there_can_be(
    *, forecast_s: float, slow_s: float, coverage: float, losing: bool
) -> None:
    policy = replace(
        ACTIVE, forecast_window_s=forecast_s, slow_window_s=slow_s, coverage_ratio=coverage
    )

    needed = needed_history(losing=losing, policy=policy)

    assert 0 < needed <= coverage
    assert needed <= needed_history(losing=False, policy=policy)


def test_work_is_lost_where_a_card_has_nothing_left_to_give() -> None:
    assert is_losing(a_reading(0.99))
    assert not is_losing(a_reading(0.96))
    assert not is_losing(replace(a_reading(0.99), slow_level_ratio=0.96))
    assert not is_losing(None)


def test_new_readings_are_read_anew() -> None:
    state = a_disruption_state()
    assert bears(state)

    usage = {**state.usage, COOL_CARD: replace(state.usage[COOL_CARD], reading=a_reading(0.75))}

    assert not bears(replace(state, usage=usage))


def test_an_owner_does_not_return_to_a_card_it_left_lately() -> None:
    past = [
        a_past_move(minutes_ago=59, owner_uid="one", source=COOL_CARD),
        a_past_move(minutes_ago=59, owner_uid="two", source=HOT_CARD),
    ]
    state = replace(a_disruption_state(), past=past)

    assert state.left_by("one", policy=ACTIVE, now=NOON) == {COOL_CARD}
    assert state.left_by("three", policy=ACTIVE, now=NOON) == frozenset()
    later = NOON + timedelta(minutes=1)
    assert state.left_by("one", policy=ACTIVE, now=later) == frozenset()


def check(source: CardReading | None, target: CardReading | None) -> Verification:
    return verify(before_ratio=0.9, pod_ratio=0.4, source=source, target=target, policy=ACTIVE)


def test_a_source_less_busy_by_half_the_pods_use_is_relieved() -> None:
    found = check(a_reading(0.7), a_reading(0.5))

    assert found.relieved
    assert round(found.relief_ratio, 6) == 0.2
    assert found.detail == (
        "the source went from 90% to 70% busy, the replacement's card is 50% busy"
    )


def test_a_source_that_stays_busy_is_not_relieved() -> None:
    assert check(a_reading(0.71), a_reading(0.5)).relieved is False


def test_heat_that_only_went_to_the_target_is_no_relief() -> None:
    assert check(a_reading(0.5), a_reading(0.8)).relieved is False
    assert check(a_reading(0.5), a_reading(0.79)).relieved is True


def test_without_a_trusted_reading_at_both_ends_nobody_knows() -> None:
    unmeasured_source = check(None, a_reading(0.1))
    unmeasured_target = check(a_reading(0.1), None)

    assert unmeasured_source.relieved is None
    assert unmeasured_source.detail == "the source is not measured"
    assert unmeasured_target.relieved is None
    assert unmeasured_target.detail == "the replacement's card is not measured"


def _left_behind(source: CardReading, *, before: float = 1.0, target: float = 0.5) -> bool | None:
    """Return the verdict on a move of the pod "gone", which used 30 % of its card."""
    return verify(
        before_ratio=before,
        pod_ratio=0.3,
        source=source,
        target=a_reading(target),
        policy=ACTIVE,
        pod_uid="gone",
    ).relieved


def test_a_saturated_source_that_its_other_pods_keep_busy_shows_nothing() -> None:
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "c": 0.4})) is None
    # Nobody knows what keeps it busy: the pod that left is no longer there, whatever a window says.
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "gone": 0.4})) is False
    assert _left_behind(a_reading(0.85, pods={"b": 0.85})) is True
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "c": 0.4}), target=0.9) is False


def test_a_move_off_a_source_that_had_time_left_and_stays_as_busy_was_useless() -> None:
    stays_busy = a_reading(0.9, pods={"b": 0.5, "c": 0.4})

    assert _left_behind(stays_busy, before=0.89) is False
    assert _left_behind(stays_busy, before=0.9) is None


def test_room_was_made_if_the_pod_started_and_the_target_is_not_hot() -> None:
    def found(*, started: bool, target: CardReading | None) -> bool | None:
        return verify_room(started=started, target=target, policy=ACTIVE).relieved

    assert found(started=True, target=a_reading(0.5)) is True
    assert found(started=True, target=a_reading(0.8)) is False
    assert found(started=True, target=None) is None
    assert found(started=False, target=a_reading(0.5)) is False


def test_only_healthy_cards_of_shared_nodes_are_expected_to_be_measured() -> None:
    state = a_disruption_state(
        nodes=[a_node("n1", HOT_CARD), a_node("whole", "GPU-whole", shared=False)], pods=[]
    )

    assert state.cards() == {HOT_CARD}


def test_a_card_is_found_by_its_node_and_reading() -> None:
    state = a_disruption_state()

    assert state.node_of(COOL_CARD) == "n2"
    assert state.node_of(CardUuid("GPU-none")) == ""
    assert state.reading(CardUuid("GPU-none")) is None
    assert state.reading(HOT_CARD) is not None


def test_reasons_have_distinct_texts_and_labels_fit_for_a_metric() -> None:
    assert len({reason.value for reason in HoldReason}) == len(HoldReason.__members__)
    assert all(
        reason.label == reason.label.lower() and " " not in reason.label for reason in HoldReason
    )


def test_a_bare_pod_has_no_owner() -> None:
    assert a_placed_pod("a", owner=None).owner_uid == ""
    assert a_placed_pod("a").owner_uid == "owner-1"
