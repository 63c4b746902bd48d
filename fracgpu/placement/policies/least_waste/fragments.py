"""How much of what is idle on a node the next pod cannot use.

The next pod is a random one of the workload's mix. If it cannot run on the node, all that is idle
is of no use to it; if it can, only the cards with too little room for it are. The mean over the mix
is the fragmentation measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, IntArray, Levels
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# How many kinds of pods are compared with a node of eight cards in a millisecond: half of what was
# measured in batches of 64 nodes.
_KINDS_PER_MS: Final = 12_000


class Fragments:
    """The mix by what its pods request of cards, and how much of it fits by model and free CPU.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        with_cards = [
            pod_class for pod_class in classes if 1 <= pod_class.demand.cards <= MAX_CARDS
        ]
        kinds = sorted({(one.demand.share_milli, one.demand.cards) for one in with_cards})
        at = {kind: number for number, kind in enumerate(kinds)}
        self._share = np.array([share for share, _ in kinds], np.int16)
        self._cards = np.array([cards for _, cards in kinds], np.int64)
        self._cpu_steps = np.unique(
            np.array([one.demand.cpu_milli for one in with_cards], np.int64)
        )
        # [model, CPU steps reached, kind] -> ratio of all pods, of that kind, that have enough CPU.
        self._ratio = np.zeros((len(models), len(self._cpu_steps) + 1, len(kinds)))
        for one in with_cards:
            kind = at[one.demand.share_milli, one.demand.cards]
            reached = int(np.searchsorted(self._cpu_steps, one.demand.cpu_milli)) + 1
            accepts = [one.demand.accepts(model) for model in models]
            self._ratio[accepts, reached:, kind] += one.frequency_ratio

    def seen_in(self, time_ms: int) -> int:
        """Return for how many nodes that takes about that time: a count, whatever the load."""
        return max(1, time_ms * _KINDS_PER_MS // max(1, len(self._share)))

    def unusable_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float64]:
        """Return the thousandths of cards that are idle and of no use to the next pod, [node].

        Args:
            levels: [node, card] free thousandths; 0 where there is no card.
            cpu_milli: [node] free thousandths of a core.
            model: [node] index of the card model.
        """
        live = levels[:, levels.any(0)]
        enough = live[:, None, :] >= self._share[:, None]  # [node, kind, card]
        room = (enough * live[:, None, :]).sum(2, dtype=np.int64)
        runs = enough.sum(2) >= self._cards
        ratio = self._ratio[model, np.searchsorted(self._cpu_steps, cpu_milli, "right")]
        unusable: NDArray[np.float64] = live.sum(1, dtype=np.int64) - (ratio * runs * room).sum(1)
        return unusable
