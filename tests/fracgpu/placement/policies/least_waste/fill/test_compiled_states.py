"""What compiled code looks up of states is what NumPy looks up, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from tests.fracgpu.placement.policies.least_waste.demands import MODELS, a_fill, mix

FILL = a_fill(mix(), MODELS)
NODE = st.tuples(
    st.lists(st.integers(0, 1000), min_size=3, max_size=3),
    st.integers(0, 300_000) | st.integers(0, 300).map(lambda cores: cores * 1000),
    st.integers(0, len(MODELS) - 1),
)
# So few states that some of them come again, and are known then.
FEW = st.tuples(
    st.lists(st.sampled_from([0, 500, 1000]), min_size=3, max_size=3),
    st.integers(0, 4_000),
    st.integers(0, len(MODELS) - 1),
)


def both() -> tuple[CardStates, CardStates]:
    compiled, plain = (
        CardStates(FILL, models=len(MODELS), nodes=1, compiled=compiled)
        for compiled in (True, False)
    )
    return compiled, plain


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(NODE | FEW, min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_states_have_the_same_names_and_the_same_waste_known_or_not(
    asked: list[list[tuple[list[int], int, int]]],
) -> None:
    compiled, plain = both()
    for nodes in asked:
        cards, cpu, model = (np.array(column) for column in zip(*nodes, strict=True))
        levels = cards.astype(np.int16)
        seen = []
        for states in (compiled, plain):
            names, lost = states.names(model, levels)
            before = states.waste_milli(names, cpu)
            found = states.evaluate(
                names, cpu, model=model, levels=levels, allowance=Allowance(len(nodes))
            )
            after = states.waste_milli(names, cpu)
            seen.append([array.tobytes() for array in (names, lost, before, found, after)])
        assert seen[0] == seen[1]
    assert compiled.evaluated == plain.evaluated


def test_an_empty_question_has_an_empty_answer() -> None:
    nothing = np.zeros(0, np.int64)
    for states in both():
        names, lost = states.names(nothing, np.zeros((0, MAX_CARDS), np.int16))
        assert (len(names), len(lost), len(states.waste_milli(names, nothing))) == (0, 0, 0)


def test_what_could_read_beyond_a_table_is_refused() -> None:
    compiled, _ = both()
    one = np.zeros(1, np.int64)

    for model, level in ((len(MODELS), 0), (-1, 0), (0, 1001), (0, -1)):
        with pytest.raises(AssertionError):
            compiled.names(one + model, np.full((1, 2), level, np.int16))
    names, _ = compiled.names(one, np.zeros((1, 2), np.int16))
    with pytest.raises(AssertionError):
        compiled.waste_milli(names, np.zeros(2, np.int64))
