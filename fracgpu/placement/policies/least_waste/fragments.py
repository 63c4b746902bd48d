"""How much of what is idle on a node the next pod cannot use.

The next pod is a random one of the workload's mix. If it cannot run on the node, all that is idle
is of no use to it; if it can, only the cards with too little room for it are. The mean over the mix
is the fragmentation measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, IntArray, Levels
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# How many kinds of pods are compared with a node of eight cards in a millisecond: half of what was
# measured in batches of 64 nodes.
_KINDS_PER_MS: Final = 12_000
# Classes of one kind take less: only their models and CPU are compared.
_CLASSES_PER_KIND: Final = 32


class Fragments:
    """The mix by what its pods request of cards, and how much of it fits by model and free CPU.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        with_cards = sorted(
            (pod_class for pod_class in classes if 1 <= pod_class.demand.cards <= MAX_CARDS),
            key=_kind,
        )
        kinds = sorted({_kind(one) for one in with_cards})
        self._share = np.array([share for share, _ in kinds], np.int16)
        self._cards = np.array([cards for _, cards in kinds], np.int64)
        # Classes of one kind differ in CPU and models. They are adjacent, from [kind] on.
        ordered = [_kind(one) for one in with_cards]
        self._first = np.array([bisect_left(ordered, kind) for kind in kinds], np.int64)
        self._frequency = np.array([one.frequency_ratio for one in with_cards])
        self._cpu_milli = np.array([one.demand.cpu_milli for one in with_cards], np.int64)
        self._accepts = np.array(
            [[one.demand.accepts(model) for one in with_cards] for model in models], bool
        ).reshape(len(models), len(with_cards))

    def seen_in(self, time_ms: int) -> int:
        """Return for how many nodes that takes about that time: a count, whatever the load."""
        kinds = len(self._share) + len(self._frequency) // _CLASSES_PER_KIND
        return max(1, time_ms * _KINDS_PER_MS // max(1, kinds))

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
        ratio = self._ratio(cpu_milli, model)
        unusable: NDArray[np.float64] = live.sum(1, dtype=np.int64) - (ratio * runs * room).sum(1)
        return unusable

    def _ratio(self, cpu_milli: NDArray[np.int32], model: IntArray) -> NDArray[np.float64]:
        """Return the ratio of all pods that are of a kind and have CPU enough, [node, kind]."""
        if not len(self._share):
            return np.zeros((len(model), 0))
        runs = self._accepts[model] & (self._cpu_milli <= cpu_milli[:, None])
        found: NDArray[np.float64] = np.add.reduceat(
            np.where(runs, self._frequency, 0.0), self._first, axis=1
        )
        return found


def _kind(pod_class: PodClass) -> tuple[int, int]:
    return pod_class.demand.share_milli, pod_class.demand.cards
