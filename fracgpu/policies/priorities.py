"""Costs as a scheduler extender may answer them: whole numbers from 0 to 10 for each node."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

HIGHEST: Final = 10  # kube-scheduler's MaxExtenderPriority


def priorities(cost_milli: NDArray[np.float64]) -> NDArray[np.int64]:
    """Turn costs into priorities: the one cheapest node gets 10, every other one 0 to 9.

    kube-scheduler draws at random among equals, and eleven steps cannot tell a thousand nodes
    apart; only the best one matters, so it is the only one with the highest mark. Of equally cheap
    nodes the first one is the best.
    """
    marks = np.full(len(cost_milli), HIGHEST - 1, np.int64)
    if not len(cost_milli):
        return marks
    least, most = cost_milli.min(), cost_milli.max()
    if most > least:
        dear = (cost_milli - least) / (most - least)
        marks = np.floor((HIGHEST - 1) * (1.0 - dear)).astype(np.int64)
    marks[cost_milli.argmin()] = HIGHEST
    return marks
