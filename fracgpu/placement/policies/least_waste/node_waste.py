"""What is wasted of a node's cards: when it is full, and for the next pod."""

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.turnover import Weights


class NodeWaste:
    """Weighs what stays idle in the long run against what is of no use now.

    Args:
        sequences: the pods to fill nodes with.
        fragments: who can use what is idle.
        weights: what counts how much.

    Attributes:
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
    """

    def __init__(self, sequences: FillSequences, fragments: Fragments, weights: Weights) -> None:
        self._sequences = sequences
        self._fragments = fragments
        self._weights = weights
        self.lost_milli: NDArray[np.int16] = sequences.lost_milli

    def evaluated_in(self, time_ms: int) -> int:
        """Return how many evaluations take about that time: a count, whatever the load."""
        fills = self._sequences.fills_in(time_ms)
        if not self._weights.fragment:
            return fills
        seen = self._fragments.seen_in(time_ms)
        return max(1, fills * seen // (fills + seen))

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float32]:
        """Return the thousandths of cards that count as wasted of each node, [node].

        Args:
            levels: [node, card] free thousandths; 0 where there is no card.
            cpu_milli: [node] free thousandths of a core.
            model: [node] index of the card model.
        """
        waste = self._sequences.expected_waste_milli(levels, cpu_milli, model)
        if not self._weights.fragment:
            return waste * np.float32(self._weights.fill)
        now = self._fragments.unusable_milli(levels, cpu_milli, model)
        weighed = self._weights.fill * waste + self._weights.fragment * now
        return weighed.astype(np.float32)
