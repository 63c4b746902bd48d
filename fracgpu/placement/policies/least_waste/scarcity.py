"""What whole idle cards are worth to the pods that can use only some of them.

Pods that need several cards of one node, a named model or much CPU can use only part of the
cluster's idle cards, and that part shrinks faster than the whole. Each class of pods sets a price
on the idle cards it can use: the cards it requests for each pod of the mix, times *s* squared minus
one, where *s* is the cluster's idle cards over the idle cards that this class can use. The price is
zero for pods that fit everywhere, and rises steeply as a class runs out of cards. A pod that takes
one of eight idle cards of a node also pays for the other seven, which pods of eight can no longer
use.

Shares of a card set no price: `fill_sequences` accounts for those.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, IntArray
from fracgpu.placement.policies.least_waste.fill.compiled_fill import CompiledFill
from fracgpu.placement.policies.least_waste.fill.compiled_scarcity import CompiledScarcity
from fracgpu.placement.policies.least_waste.turnover import Weights
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

_EXPONENT: Final = 2


class Scarcity:
    """Prices of idle cards, from the workload's mix and the idle cards of the cluster.

    Only the classes of whole cards count. CPU is compared in steps: the distinct CPU requests of
    these classes, in ascending order. A node has reached step *s* if its free CPU is enough for the
    *s* lowest of them.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.
        weights: how much these prices count, and the upper limit of s squared minus one.
        compiled: whether compiled code computes them; they are the same.

    Attributes:
        cpu_steps: thousandths of a core, ascending.
        worth: [model, CPU steps reached, idle cards of a node] what those cards are worth, in
            thousandths of a card.
    """

    def __init__(
        self,
        classes: Sequence[PodClass],
        models: Sequence[str],
        weights: Weights,
        *,
        compiled: bool = CompiledFill.problem is None,
    ) -> None:
        self._weights = weights
        whole = [
            pod_class
            for pod_class in classes
            if pod_class.demand.share_milli == WHOLE_CARD_MILLI
            and pod_class.demand.cards <= MAX_CARDS
        ]
        # Weighted by cards, not by pods: pods of eight cards are few, and take whole nodes.
        self._demand = np.array(
            [pod_class.frequency_ratio * pod_class.demand.cards for pod_class in whole], float
        )
        self.cpu_steps = np.unique([pod_class.demand.cpu_milli for pod_class in whole]).astype(
            np.int64
        )
        self._need_step = np.searchsorted(
            self.cpu_steps, np.array([pod_class.demand.cpu_milli for pod_class in whole], np.int64)
        )
        self._need_cards = np.array([pod_class.demand.cards for pod_class in whole], np.int64)
        self._accepts = np.array(
            [[pod_class.demand.accepts(model) for model in models] for pod_class in whole], bool
        ).reshape(len(whole), len(models))
        self.worth = np.zeros((len(models), len(self.cpu_steps) + 1, MAX_CARDS + 1))
        self._compiled: CompiledScarcity | None = None
        if compiled:
            self._compiled = CompiledScarcity(
                self._demand,
                need_step=self._need_step,
                need_cards=self._need_cards,
                accepts=self._accepts,
                cpu_steps=self.cpu_steps,
                worth=self.worth,
                limit=weights.premium_limit,
                weight=weights.scarcity * WHOLE_CARD_MILLI,
            )

    def refresh(self, *, model: IntArray, cpu_milli: IntArray, idle_cards: IntArray) -> None:
        """Compute the prices again from all nodes.

        Args:
            model: [node] index of the card model.
            cpu_milli: [node] free thousandths of a core.
            idle_cards: [node] how many whole cards are free.
        """
        if self._compiled is not None:
            self._compiled.refresh(model=model, cpu_milli=cpu_milli, idle_cards=idle_cards)
            return
        # The same axes as worth: idle cards on nodes of each kind.
        usable = np.zeros_like(self.worth)
        np.add.at(usable, (model, self._steps(cpu_milli), idle_cards), idle_cards)
        total = float(idle_cards.sum())
        # Sums from the end turn "exactly this CPU step and these cards" into "at least".
        usable = np.flip(np.flip(usable, (1, 2)).cumsum(1).cumsum(2), (1, 2))
        # A class can use nodes that have reached its own step, hence + 1: [class, model].
        at_step = usable[:, self._need_step + 1, self._need_cards].T
        reach = (at_step * self._accepts).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            scarce = np.where(reach > 0, total / reach, np.inf)
        price = self._demand * np.minimum(scarce**_EXPONENT - 1.0, self._weights.premium_limit)
        # A class pays at its own step and cards; sums from the start carry the price on to nodes
        # with more of either, and the last line multiplies it by the idle cards.
        paid = np.zeros_like(self.worth)
        which, at_model = np.nonzero(self._accepts)
        np.add.at(
            paid, (at_model, self._need_step[which] + 1, self._need_cards[which]), price[which]
        )
        np.cumsum(paid.cumsum(1), 2, out=self.worth)
        self.worth *= np.arange(MAX_CARDS + 1) * (self._weights.scarcity * WHOLE_CARD_MILLI)

    def worth_milli(
        self, *, model: IntArray, cpu_milli: IntArray, idle_cards: IntArray
    ) -> NDArray[np.float64]:
        """Return what the idle cards of nodes are worth to pods that are short of them, [node]."""
        return self.worth[model, self._steps(cpu_milli), idle_cards]

    def _steps(self, cpu_milli: IntArray) -> IntArray:
        return np.searchsorted(self.cpu_steps, cpu_milli, "right")
