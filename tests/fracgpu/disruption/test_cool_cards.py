"""Cool cards: unknown is never cool, and each line counts what comes on top."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.cool_cards import PlanIndex, load_coming
from fracgpu.disruption.disruption_state import DisruptionState
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


def bears(state: DisruptionState, *, busy: float = 0.3, high: float = 0.3, mib: int = 1) -> bool:
    use = MeasuredPodUse(busy_ratio=busy, high_ratio=high)
    cells = state.cool_cards().bearing(use, model="A30", free_mib=mib, policy=ACTIVE)
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

    assert not state.cool_cards().bearing(use, model="H100", free_mib=1, policy=ACTIVE).any()


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
