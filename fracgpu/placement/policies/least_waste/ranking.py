"""What a pod would cost on each node: the answer of `policy`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a pod would cost on each node where it fits; the arrays have one entry for each.

    Attributes:
        rows: the nodes as rows of the policy's table, ascending.
        cost_milli: thousandths of a card that the cluster is expected to lose; lower is better, and
            NaN is not known yet.
        card: for a pod on one card, the best card of that node; else -1.
    """

    rows: IntArray
    cost_milli: NDArray[np.float64]
    card: IntArray

    @property
    def best(self) -> int | None:
        """The position of the best node, the lowest row among equals; None if none fits.

        Nodes of which the cost is not known come last.
        """
        if not len(self.rows):
            return None
        return int(np.where(np.isnan(self.cost_milli), np.inf, self.cost_milli).argmin())


def cheapest_of_each(node: IntArray, cost: NDArray[np.float64]) -> IntArray:
    """Return the entry of least cost of each node, and of equal ones the first.

    Entries that are not known count where a node has no other.

    Args:
        node: [entry] ascending.
        cost: [entry] NaN where it is not known.
    """
    # Where the entries of each node begin: they are adjacent.
    first = np.flatnonzero(np.diff(node, prepend=-1))
    if len(first) == len(node):
        return first
    known = np.where(np.isnan(cost), np.inf, cost)
    least = np.minimum.reduceat(known, first)
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(node))))
    hits = np.flatnonzero(known == least[group])
    found: IntArray = hits[np.flatnonzero(np.diff(group[hits], prepend=-1))]
    return found
