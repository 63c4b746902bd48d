"""Each state is numbered once, and its cached waste equals a fresh evaluation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS, Levels
from fracgpu.placement.policies.least_waste.card_states import CPU_STEP_MILLI, CardStates
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences
from tests.fracgpu.placement.policies.least_waste.demands import MODELS, mix

FILL = FillSequences(mix(), MODELS)
ZERO = np.zeros(1, np.int64)


def levels(*cards: int) -> Levels:
    row = np.zeros((1, MAX_CARDS), np.int16)
    row[0, : len(cards)] = cards
    return row


def test_the_order_of_cards_and_full_cards_make_no_new_state() -> None:
    states = CardStates(FILL)

    first, _ = states.rows(ZERO, levels(1000, 500, 0))
    second, _ = states.rows(ZERO, levels(0, 0, 500, 1000))

    assert first == second
    assert len(states) == 1
    assert states.idle_cards[first[0]] == 1


def test_equal_cards_of_another_model_are_another_state() -> None:
    states = CardStates(FILL)

    first, _ = states.rows(ZERO, levels(1000))
    second, _ = states.rows(ZERO + 1, levels(1000))

    assert first != second


def test_a_remainder_that_is_lost_is_counted_and_leaves_the_state() -> None:
    states = CardStates(FILL)
    bare, none = states.rows(ZERO, levels(1000))
    same, lost = states.rows(ZERO, levels(1000, 190))

    assert bare == same
    assert (none.tolist(), lost.tolist()) == ([0], [190])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 500, 810, 1000]), st.integers(0, 300_000)), min_size=1)
)
def test_what_is_remembered_equals_what_is_worked_out_anew(asked: list[tuple[int, int]]) -> None:
    kept = CardStates(FILL)
    for level, cpu in asked:
        row, _ = kept.rows(ZERO, levels(1000, level))
        fresh = CardStates(FILL)
        alone, _ = fresh.rows(ZERO, levels(1000, level))

        cpu_milli = np.array([cpu])
        assert kept.waste_milli(row, cpu_milli) == fresh.waste_milli(alone, cpu_milli)


def test_whole_cores_are_exact_and_the_rest_is_read_off_in_between() -> None:
    states = CardStates(FILL)
    row, _ = states.rows(ZERO, levels(1000, 1000, 500))
    at = {
        cpu: float(states.waste_milli(row, np.array([cpu]))[0])
        for cpu in (8 * CPU_STEP_MILLI, 8 * CPU_STEP_MILLI + 250, 9 * CPU_STEP_MILLI)
    }
    exact = FILL.expected_waste_milli(
        np.repeat(levels(1000, 1000, 500), 2, axis=0),
        np.array([8000, 9000], np.int32),
        ZERO[[0, 0]],
    )

    assert at[8000] == exact[0]
    assert at[9000] == exact[1]
    assert at[8250] == pytest.approx(0.75 * exact[0] + 0.25 * exact[1])


def test_a_question_asked_again_evaluates_nothing() -> None:
    states = CardStates(FILL)
    row, _ = states.rows(ZERO, levels(1000))
    states.waste_milli(row, np.array([5500]))
    before = states.evaluated
    states.waste_milli(row, np.array([5600]))

    assert before > 0
    assert states.evaluated == before


def test_more_states_than_first_fit_are_kept() -> None:
    states = CardStates(FILL)
    rows = [
        int(states.rows(ZERO, levels(500 + number // 20, 981 + number % 20))[0][0])
        for number in range(600)
    ]

    assert len(states) == len(set(rows)) > 256
    assert states.waste_milli(np.array(rows), np.full(600, 4000)).max() < 2000
