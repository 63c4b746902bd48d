"""Each state has one name, and its remembered waste equals a fresh evaluation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS, IntArray, Levels
from fracgpu.placement.policies.least_waste.card_states import (
    CPU_STEP_MILLI,
    Allowance,
    CardStates,
)
from tests.fracgpu.placement.policies.least_waste.demands import MODELS, a_fill, mix

FILL = a_fill(mix(), MODELS)
ZERO = np.zeros(1, np.int64)
LEVELS = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


def levels(*cards: int) -> Levels:
    row = np.zeros((1, MAX_CARDS), np.int16)
    row[0, : len(cards)] = cards
    return row


def a_cache(nodes: int = 1) -> CardStates:
    return CardStates(FILL, models=len(MODELS), nodes=nodes)


def name_of(*cards: int, model: int = 0) -> int:
    return int(a_cache().names(ZERO + model, levels(*cards))[0][0])


def evaluated(
    states: CardStates, rows: Levels, cpu_milli: IntArray, *, most: int | None = None
) -> list[float]:
    model = np.zeros(len(rows), np.int64)
    names, _ = states.names(model, rows)
    allowance = Allowance(most)
    found: list[float] = states.evaluate(
        names, cpu_milli, model=model, levels=rows, allowance=allowance
    ).tolist()
    return found


def test_the_order_of_cards_and_full_cards_make_no_new_state() -> None:
    assert name_of(1000, 500, 0) == name_of(0, 0, 500, 1000) == name_of(500, 1000)


def test_equal_cards_of_another_model_are_another_state() -> None:
    assert name_of(1000) != name_of(1000, model=1)


@settings(max_examples=300, deadline=None)
@given(LEVELS, LEVELS)
def test_two_nodes_share_a_state_only_if_the_same_is_left_of_their_cards(
    one: list[int], other: list[int]
) -> None:
    lost = int(FILL.lost_milli[0])
    live_one, live_other = (
        sorted(level for level in cards if level > lost) for cards in (one, other)
    )

    assert (name_of(*one) == name_of(*other)) == (live_one == live_other)


def test_a_remainder_that_is_lost_is_counted_and_leaves_the_state() -> None:
    states = a_cache()
    bare, none = states.names(ZERO, levels(1000))
    same, lost = states.names(ZERO, levels(1000, 190))

    assert bare == same
    assert (none.tolist(), lost.tolist()) == ([0], [190])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 500, 810, 1000]), st.integers(0, 300_000)), min_size=1)
)
def test_what_is_remembered_equals_what_is_worked_out_anew(asked: list[tuple[int, int]]) -> None:
    kept = a_cache()
    for level, cpu in asked:
        cpu_milli, cards = np.array([cpu]), levels(1000, level)
        fresh = evaluated(a_cache(), cards, cpu_milli)

        assert evaluated(kept, cards, cpu_milli) == fresh
        names, _ = kept.names(ZERO, cards)
        assert kept.waste_milli(names, cpu_milli).tolist() == fresh


def test_whole_cores_are_exact_and_the_rest_is_read_off_in_between() -> None:
    states, cards = a_cache(), levels(1000, 1000, 500)
    at = {
        cpu: evaluated(states, cards, np.array([cpu]))[0]
        for cpu in (8 * CPU_STEP_MILLI, 8 * CPU_STEP_MILLI + 250, 9 * CPU_STEP_MILLI)
    }
    exact = FILL.expected_waste_milli(
        np.repeat(cards, 2, axis=0), np.array([8000, 9000], np.int32), ZERO[[0, 0]]
    )

    assert at[8000] == exact[0]
    assert at[9000] == exact[1]
    assert at[8250] == pytest.approx(0.75 * exact[0] + 0.25 * exact[1])


def test_a_question_asked_again_evaluates_nothing() -> None:
    states = a_cache()
    evaluated(states, levels(1000), np.array([5500]))
    before = states.evaluated
    evaluated(states, levels(1000), np.array([5600]))

    assert before > 0
    assert states.evaluated == before


def many(count: int) -> Levels:
    found = np.zeros((count, MAX_CARDS), np.int16)
    found[:, 0] = 500 + np.arange(count) // 20
    found[:, 1] = 981 + np.arange(count) % 20
    return found


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 200))
def test_no_more_is_evaluated_than_is_allowed_and_what_comes_first_comes_first(most: int) -> None:
    states = a_cache()
    found = evaluated(states, many(200), np.full(200, 4000), most=most)

    assert states.evaluated == min(most, 400)
    known = ~np.isnan(found)
    assert known.sum() == states.evaluated // 2
    assert known[: int(known.sum())].all()


def test_an_allowance_is_spent_over_several_calls() -> None:
    states, allowance = a_cache(), Allowance(10)
    rows = many(20)
    model = np.zeros(len(rows), np.int64)
    names, _ = states.names(model, rows)
    for _ in range(3):
        states.evaluate(names, np.full(20, 4000), model=model, levels=rows, allowance=allowance)

    assert states.evaluated == 10
    assert allowance.spent


def test_what_is_full_gives_up_one_entry_for_another_and_never_grows() -> None:
    states = a_cache()
    names = np.random.Philox(1).random_raw(4 * states.memory_bytes // 12)
    size = states.memory_bytes
    states._keep(names, np.arange(len(names), dtype=np.float32))
    kept = ~np.isnan(states._find(names))

    assert states.memory_bytes == size
    assert kept[-100:].all(), "the newest are there"
    assert kept.sum() > 0.9 * size / 12, "and nearly every entry is in use"


def test_memory_follows_the_number_of_nodes_between_two_limits() -> None:
    sizes = [a_cache(nodes).memory_bytes >> 20 for nodes in (1, 1_000, 2_000, 5_000, 100_000)]

    assert sizes == sorted(sizes)
    assert sizes[0] < 1
    assert sizes[-1] == 12


@pytest.mark.parametrize("wanted", [0, 5, 100])
def test_without_a_limit_everything_may_be_evaluated(wanted: int) -> None:
    allowance = Allowance()
    allowance.spend(1000)

    assert allowance.most(wanted) == wanted
    assert not allowance.spent
