"""The best node is the one and only with the highest mark."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.policies.priorities import HIGHEST, priorities

COSTS = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=50)


@given(COSTS)
def test_only_the_cheapest_gets_the_highest_mark(costs: list[float]) -> None:
    marks = priorities(np.array(costs))

    assert (marks == HIGHEST).sum() == 1
    assert marks.argmax() == int(np.argmin(costs))
    assert marks.min() >= 0


@given(COSTS)
def test_a_dearer_node_never_gets_a_higher_mark(costs: list[float]) -> None:
    marks = priorities(np.array(costs))

    assert (np.diff(marks[np.argsort(costs, kind="stable")]) <= 0).all()


def test_no_node_needs_no_mark() -> None:
    assert priorities(np.zeros(0)).tolist() == []
