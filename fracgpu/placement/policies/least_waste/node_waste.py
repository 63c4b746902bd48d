"""What is wasted of a node's cards: when it is full, for the next pod, and for shares to come."""

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.turnover import Weights


class NodeWaste:
    """Weighs what stays idle in the long run, what is of no use now and what shares would pay for.

    Args:
        sequences: the pods to fill nodes with.
        fragments: who can use what is idle.
        card_values_milli: [free thousandths] what room on a card is worth to shares.
        weights: what counts how much.

    Attributes:
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
    """

    def __init__(
        self,
        sequences: FillSequences,
        fragments: Fragments,
        card_values_milli: NDArray[np.float32],
        weights: Weights,
    ) -> None:
        self._sequences = sequences
        self._fragments = fragments
        self._worth_milli = np.float32(weights.room) * card_values_milli
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

        What room is worth is taken off, so it may be below 0; only differences count.

        Args:
            levels: [node, card] free thousandths; 0 where there is no card.
            cpu_milli: [node] free thousandths of a core.
            model: [node] index of the card model.
        """
        full = self._sequences.expected_waste_milli(levels, cpu_milli, model)
        waste: NDArray[np.float32] = full * np.float32(self._weights.fill)
        if self._weights.room:
            waste -= self._worth_milli[levels].sum(1)
        if not self._weights.fragment:
            return waste
        now = self._fragments.unusable_milli(levels, cpu_milli, model)
        return (waste + self._weights.fragment * now).astype(np.float32)
