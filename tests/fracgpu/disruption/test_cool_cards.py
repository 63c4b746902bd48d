"""Cool cards: unknown is never cool, and each line counts what comes on top."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import (
    DisruptionState,
    PlanIndex,
    is_losing,
    load_coming,
    needed_history,
)
from fracgpu.disruption.heat import CardReading, Heat, MeasuredPodUse
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_past_move,
    a_reading,
)

IDLE = a_reading(0.05)


def bears(
    state: DisruptionState,
    *,
    busy: float = 0.3,
    high: float = 0.3,
    mib: int = 1,
    losing: bool = False,
) -> bool:
    use = MeasuredPodUse(busy_ratio=busy, high_ratio=high)
    cool = state.cool_cards()
    cells = cool.bearing(use, model="A30", free_mib=mib, losing=losing, policy=ACTIVE)
    cells &= cool.measured(losing=losing, policy=ACTIVE)
    row, column = state.index.places(state.snapshot)[COOL_CARD]
    assert cells.sum() <= 1, "the hot card is never one"
    return bool(cells[row, column])


def test_a_cool_card_bears_a_pod_up_to_the_ceiling() -> None:
    state = a_disruption_state()

    assert bears(state, busy=0.54)
    assert not bears(state, busy=0.56)
    assert not bears(state, high=0.76)
    assert bears(state, mib=24_000)
    assert not bears(state, mib=24_001)


@pytest.mark.parametrize(
    "reading",
    [None, replace(IDLE, repeating=True), replace(IDLE, broken=True), a_reading(0.31)],
)
def test_a_card_that_is_not_known_to_be_cool_bears_nothing(reading: CardReading | None) -> None:
    assert not bears(a_disruption_state(readings={COOL_CARD: reading}))


@pytest.mark.parametrize("heat", [heat for heat in Heat if heat is not Heat.COOL])
def test_a_card_in_any_other_heat_bears_nothing(heat: Heat) -> None:
    assert not bears(a_disruption_state(heat={COOL_CARD: heat}))


def test_another_model_is_no_target() -> None:
    state = a_disruption_state()
    use = MeasuredPodUse(busy_ratio=0.1, high_ratio=0.1)

    cells = state.cool_cards().bearing(use, model="H100", free_mib=1, losing=False, policy=ACTIVE)
    assert not cells.any()


def with_cool(*, history_ratio: float = 1.0, remembered_ratio: float = 0.05) -> DisruptionState:
    reading = replace(IDLE, history_ratio=history_ratio, remembered_ratio=remembered_ratio)
    return a_disruption_state(readings={COOL_CARD: reading})


def test_a_card_bears_a_pod_once_the_forecast_window_has_been_measured() -> None:
    assert bears(with_cool(history_ratio=0.8))
    assert not bears(with_cool(history_ratio=0.79))


def test_while_work_is_lost_a_card_bears_a_pod_once_the_long_window_has_been_measured() -> None:
    assert bears(with_cool(history_ratio=0.4), losing=True)
    assert not bears(with_cool(history_ratio=0.39), losing=True)


def test_the_card_that_was_measured_longest_is_a_target_first() -> None:
    cool = with_cool(history_ratio=0.3).cool_cards()
    every = np.ones(cool.history.shape, np.bool_)

    def wait_s(*, losing: bool) -> float:
        return cool.soonest_measured_s(every, losing=losing, policy=ACTIVE)

    assert wait_s(losing=False) == pytest.approx(0.5 * ACTIVE.forecast_window_s)
    assert wait_s(losing=True) == pytest.approx(0.1 * ACTIVE.forecast_window_s)


def test_a_card_that_was_often_busy_bears_only_a_pod_with_which_it_would_not_have_been_hot() -> (
    None
):
    assert bears(with_cool(remembered_ratio=0.49))
    assert not bears(with_cool(remembered_ratio=0.51))


def test_while_work_is_lost_a_card_that_was_often_busy_bears_a_pod_up_to_its_whole_time() -> None:
    assert bears(with_cool(remembered_ratio=0.69), losing=True)
    assert not bears(with_cool(remembered_ratio=0.71), losing=True)


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

    usage = {**state.usage, COOL_CARD: replace(state.usage[COOL_CARD], reading=a_reading(0.5))}

    assert not bears(replace(state, usage=usage))


def test_an_owner_does_not_return_to_a_card_it_left_lately() -> None:
    past = [
        a_past_move(minutes_ago=59, owner_uid="one", source=COOL_CARD),
        a_past_move(minutes_ago=59, owner_uid="two", source=HOT_CARD),
    ]
    index = PlanIndex()

    assert index.left("one", past, policy=ACTIVE, now=NOON) == {COOL_CARD}
    assert index.left("three", past, policy=ACTIVE, now=NOON) == frozenset()
    later = NOON + timedelta(minutes=1)
    assert index.left("one", past, policy=ACTIVE, now=later) == frozenset()


def test_what_is_on_its_way_counts_on_its_target_and_where_it_landed() -> None:
    coming = a_past_move(under_way=True, target=COOL_CARD, busy_ratio=0.2)
    landed = replace(coming, landed=CardUuid("GPU-other"))
    index = PlanIndex()

    under_way = index.under_way([coming, landed, a_past_move(target=COOL_CARD)])

    assert len(under_way) == 2
    assert load_coming(COOL_CARD, under_way) == pytest.approx(0.4)
    assert load_coming(CardUuid("GPU-other"), under_way) == pytest.approx(0.2)
    assert load_coming(CardUuid("GPU-x"), under_way) == 0
