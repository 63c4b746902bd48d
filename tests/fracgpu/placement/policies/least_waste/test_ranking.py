"""The best node costs least; one of which the cost is not known comes last."""

import numpy as np
import pytest

from fracgpu.placement.policies.least_waste.ranking import Ranking, cheapest_of_each

NAN = float("nan")


@pytest.mark.parametrize(
    ("cost", "best"),
    [([], None), ([2.0, 1.0], 1), ([1.0, 1.0], 0), ([NAN, 5.0], 1), ([NAN, NAN], 0)],
)
def test_the_first_of_the_cheapest_is_the_best(cost: list[float], best: int | None) -> None:
    nodes = np.arange(len(cost))

    assert Ranking(rows=nodes, cost_milli=np.array(cost), card=nodes).best == best


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
