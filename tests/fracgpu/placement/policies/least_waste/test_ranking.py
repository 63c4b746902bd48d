"""The best node costs least; one of which the cost is not known comes last."""

import numpy as np
import pytest

from fracgpu.placement.node_matrix import IntArray
from fracgpu.placement.policies.least_waste.ranking import Ranking, cheapest_of_each

NAN = float("nan")


def a_ranking(
    rows: IntArray, cost: list[float], *, changed: int = 0, priced: int = 0, complete: bool = True
) -> Ranking:
    return Ranking(
        rows=rows,
        cost_milli=np.array(cost),
        card=rows,
        changed=changed,
        priced=priced,
        complete=complete,
    )


@pytest.mark.parametrize(
    ("cost", "best"),
    [([], None), ([2.0, 1.0], 1), ([1.0, 1.0], 0), ([NAN, 5.0], 1), ([NAN, NAN], 0)],
)
def test_the_first_of_the_cheapest_is_the_best(cost: list[float], best: int | None) -> None:
    nodes = np.arange(len(cost))

    assert a_ranking(nodes, cost).best == best


@pytest.mark.parametrize(
    ("node", "cost", "chosen"),
    [
        ([], [], []),
        ([0, 2], [1.0, NAN], [0, 1]),
        ([0, 0, 0, 1, 1], [2.0, 1.0, 1.0, NAN, 5.0], [1, 4]),
        ([3, 3, 4], [NAN, NAN, 1.0], [0, 2]),
    ],
)
def test_of_each_node_the_first_of_its_cheapest_options_counts(
    node: list[int], cost: list[float], chosen: list[int]
) -> None:
    assert cheapest_of_each(np.array(node, np.int64), np.array(cost)).tolist() == chosen


def test_a_ranking_holds_until_the_node_or_the_prices_change_or_if_something_was_unknown() -> None:
    rows = np.array([2, 5, 7])
    ranking = a_ranking(rows, [1.0, 2.0, 3.0], changed=40, priced=32)
    partial = a_ranking(rows, [1.0, 2.0, 3.0], changed=40, priced=32, complete=False)

    assert [ranking.position_of(row, changed=40, priced=32) for row in (2, 5, 7)] == [0, 1, 2]
    assert [ranking.position_of(row, changed=40, priced=32) for row in (1, 6, 8)] == [None] * 3
    assert ranking.position_of(5, changed=41, priced=32) is None
    assert ranking.position_of(5, changed=40, priced=48) is None
    assert partial.position_of(5, changed=40, priced=32) is None
