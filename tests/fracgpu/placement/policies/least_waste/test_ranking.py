"""The best node costs least; one of which the cost is not known comes last."""

import numpy as np
import pytest

from fracgpu.placement.policies.least_waste.ranking import Ranking

NAN = float("nan")


@pytest.mark.parametrize(
    ("cost", "best"),
    [([], None), ([2.0, 1.0], 1), ([1.0, 1.0], 0), ([NAN, 5.0], 1), ([NAN, NAN], 0)],
)
def test_the_first_of_the_cheapest_is_the_best(cost: list[float], best: int | None) -> None:
    nodes = np.arange(len(cost))

    assert Ranking(rows=nodes, cost_milli=np.array(cost), card=nodes).best == best
