"""What the room on a card is worth to shares, when shares are packed as densely as they can be.

Some sizes go together and some do not: beside a share of 0.47 another of 0.47 leaves hardly
anything, one of 0.37 leaves 0.16 that next to no pod can use. A node that is filled on its own
(`fill_sequences`) cannot tell, because there the right partner always comes in the end; in a
cluster the partners of one size are used up by the others.

The fewest cards that hold all shares of the mix are a linear program, over the ways to fill one
card. Its dual prices say what part of a card each size takes when all cards are filled in the best
ways: a half for a share of 0.47, one whole card for 0.81. Room on a card is worth the most that a
set of shares fitting there would pay. So a share that goes into the room it suits costs just its
price, and any other place costs more.

The method is that of P. C. Gilmore and R. E. Gomory, "A Linear Programming Approach to the
Cutting-Stock Problem", Operations Research 9 (6), 1961: the simplex method, in which a knapsack
problem finds the next way to fill a card.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# These bound the time: groups of sizes, and pivots of the simplex method. With fewer, prices are
# less exact.
_MOST_SIZES: Final = 24
_MOST_PIVOTS: Final = 100
_TOLERANCE: Final = 1e-6


def card_values_milli(classes: Sequence[PodClass]) -> NDArray[np.float32]:
    """Return what free room on a card is worth, [free thousandths], in thousandths of a card.

    A whole idle card is worth 1000 if the mix has pods for cards; else nothing has a value.

    Args:
        classes: the workload's mix.
    """
    sizes, requested = _shares(classes)
    prices = _prices(sizes, requested)
    values = _best_fill(sizes, prices)
    # Where the pivots ended early, some way to fill a card still pays more than the card.
    values /= max(1.0, values[-1])
    if any(pod_class.demand.cards for pod_class in classes):
        values[-1] = 1.0
    return np.round(values * WHOLE_CARD_MILLI).astype(np.float32)


def _shares(classes: Sequence[PodClass]) -> tuple[list[int], NDArray[np.float64]]:
    """Return sizes of shares, ascending, and how many of each are requested.

    Of a group of sizes, it is the most frequent one.
    """
    count: dict[int, float] = {}
    for pod_class in classes:
        demand = pod_class.demand
        if demand.cards and 0 < demand.share_milli < WHOLE_CARD_MILLI:
            seen = count.get(demand.share_milli, 0.0)
            count[demand.share_milli] = seen + demand.cards * pod_class.frequency_ratio
    groups = _groups(count) if len(count) > _MOST_SIZES else [[size] for size in sorted(count)]
    sizes = [max(group, key=lambda size: (count[size], size)) for group in groups]
    return sizes, np.array([sum(count[size] for size in group) for group in groups], np.float64)


def _groups(count: Mapping[int, float]) -> list[list[int]]:
    """Return sizes that are next to each other in groups that request about as many cards each."""
    groups: dict[int, list[int]] = {}
    total, below = sum(size * number for size, number in count.items()), 0.0
    for size in sorted(count):
        half = size * count[size] / 2
        groups.setdefault(int(_MOST_SIZES * (below + half) / total), []).append(size)
        below += 2 * half
    return list(groups.values())


def _prices(sizes: Sequence[int], requested: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the dual price of each size: the part of a card that one more such share takes."""
    # Each column is a way to fill a card: how many shares of each size. At first, of one size.
    ways = np.diag([WHOLE_CARD_MILLI // size for size in sizes]).astype(np.float64)
    prices = 1.0 / ways.diagonal() if sizes else np.zeros(0)
    for _ in range(_MOST_PIVOTS if sizes else 0):
        values = _best_fill(sizes, prices)
        if values[-1] <= 1.0 + _TOLERANCE:
            break
        better = _way(sizes, prices, values)
        # How much of each way is used, and by how much one card of the better way replaces it.
        used, replaced = np.linalg.solve(ways, np.stack((requested, better), axis=1)).T
        ratio = np.full(len(sizes), np.inf)
        np.divide(np.maximum(used, 0.0), replaced, out=ratio, where=replaced > _TOLERANCE)
        if np.isinf(ratio).all():  # by rounding alone
            break
        ways[:, int(ratio.argmin())] = better
        prices = np.linalg.solve(ways.T, np.ones(len(sizes))).astype(np.float64)
    return np.maximum(prices, 0.0)


def _best_fill(sizes: Sequence[int], prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most that shares in each room would pay together, [free thousandths]."""
    best = np.zeros(WHOLE_CARD_MILLI + 1)
    for size, price in zip(sizes, prices.tolist(), strict=True):
        if price > 0.0:
            # None or one, then two more, then four more: any number of that size.
            several = 1
            while several * size < len(best):
                more = best[: -several * size] + several * price
                np.maximum(best[several * size :], more, out=best[several * size :])
                several *= 2
    return best


def _way(
    sizes: Sequence[int], prices: NDArray[np.float64], best: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many shares of each size are in the best fill of a whole card."""
    way, room = np.zeros(len(sizes)), WHOLE_CARD_MILLI
    # Of equal sets the one of larger shares.
    at = len(sizes) - 1
    while at >= 0:
        size = sizes[at]
        if size <= room and prices[at] > 0 and best[room - size] + prices[at] >= best[room] - 1e-12:
            way[at] += 1
            room -= size
        else:
            at -= 1
    return way
