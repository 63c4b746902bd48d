"""What a pod would cost on each node: the answer of `policy`."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import IntArray


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod would cost on each node where it fits; the arrays have one entry for each.

    Attributes:
        rows: the nodes as rows of the policy's table, ascending.
        cost_milli: thousandths of a card that the cluster is expected to lose; lower is better, and
            NaN is not known yet.
        card: for a pod on one card, the best card of that node; else -1.
        changed: the number of the latest change of nodes that it is about.
        priced: the number of the change as of which its prices are.
        complete: every option of these nodes was known.
    """

    rows: IntArray
    cost_milli: NDArray[np.float64]
    card: IntArray
    changed: int
    priced: int
    complete: bool

    @property
    def best(self) -> int | None:
        """The position of the best node, the lowest row among equals; None if none fits.

        Nodes of which the cost is not known come last.
        """
        if not len(self.rows):
            return None
        return int(np.where(np.isnan(self.cost_milli), np.inf, self.cost_milli).argmin())

    def position_of(self, row: int, *, changed: int, priced: int) -> int | None:
        """Return the position of a node; None if it has none, or would not cost the same now.

        Args:
            row: the node.
            changed: the number of its latest change.
            priced: the number of the change as of which the prices are now.
        """
        if not self.complete or changed > self.changed or priced != self.priced:
            return None
        at = int(np.searchsorted(self.rows, row))
        return at if at < len(self.rows) and self.rows[at] == row else None


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
