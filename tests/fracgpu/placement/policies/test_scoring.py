"""The interface of the policies that score one card at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.placement.placement import SCORING
from fracgpu.request.need import Strategy

shares = st.floats(0, 1)


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=5), st.sampled_from(Strategy))
def test_a_column_is_judged_exactly_as_each_card_of_it(
    cards: list[tuple[float, float]], strategy: Strategy
) -> None:
    scoring = SCORING[strategy]
    column = scoring.score(
        np.array([card[0] for card in cards]), np.array([card[1] for card in cards])
    )

    assert column.tolist() == [scoring.score(left, heat) for left, heat in cards]
    assert all(0 <= score <= 1 for score in column.tolist())
