"""What whole idle cards are worth to the pods that can use only some of them.

Pods that need several cards of one node, a named model or much CPU can use only part of the
cluster's idle cards, and that part shrinks faster than the whole. A class of pods sets a price on
the idle cards it can use: the cards it asks for by the pod of the mix, times (idle cards of the
cluster / idle cards this class can use) squared, less one. It is nothing for pods that can go
everywhere, and rises steeply as a class is about to be shut out. Whoever takes one of eight idle
cards pays what the other seven were worth to pods of eight.

Shares of a card set no price: `fill_sequences` judges those better.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, Index
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

WEIGHT: Final = 0.1
_STEEPNESS: Final = 2
_HIGHEST: Final = 30.0


class Scarcity:
    """Prices of idle cards, for the mix and the idle cards there are.

    Args:
        classes: the workload's mix.
        models: the card models; a node is known by the index of its model in here.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        whole = [
            it
            for it in classes
            if it.demand.share_milli == WHOLE_CARD_MILLI and it.demand.cards <= MAX_CARDS
        ]
        # Weighed by cards, not by pods: pods of eight cards are few, and take whole nodes.
        self._demand = np.array([it.frequency_ratio * it.demand.cards for it in whole], float)
        self._cpu_steps = np.unique([it.demand.cpu_milli for it in whole]).astype(np.int64)
        self._need_step = np.searchsorted(
            self._cpu_steps, np.array([it.demand.cpu_milli for it in whole], np.int64)
        )
        self._need_cards = np.array([it.demand.cards for it in whole], np.int64)
        self._accepts = np.array(
            [[it.demand.accepts(model) for model in models] for it in whole], bool
        ).reshape(len(whole), len(models))
        # [model, CPU steps reached, idle cards] -> thousandths of a card
        self._value = np.zeros((len(models), len(self._cpu_steps) + 1, MAX_CARDS + 1))

    def refresh(self, *, model: Index, cpu_milli: Index, idle_cards: Index) -> None:
        """Set the prices anew from the idle cards of all nodes."""
        usable = np.zeros_like(self._value)
        np.add.at(usable, (model, self._steps(cpu_milli), idle_cards), idle_cards)
        total = float(idle_cards.sum())
        # From "exactly so much" to "at least so much", over CPU and over cards.
        usable = np.flip(np.flip(usable, (1, 2)).cumsum(1).cumsum(2), (1, 2))
        at_step = usable[:, self._need_step + 1, self._need_cards].T
        reach = (at_step * self._accepts).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            scarce = np.where(reach > 0, total / reach, np.inf)
        price = self._demand * np.minimum(scarce**_STEEPNESS - 1.0, _HIGHEST)
        paid = np.zeros_like(self._value)
        who, where = np.nonzero(self._accepts)
        np.add.at(paid, (where, self._need_step[who] + 1, self._need_cards[who]), price[who])
        self._value = paid.cumsum(1).cumsum(2)
        self._value *= np.arange(MAX_CARDS + 1) * (WEIGHT * WHOLE_CARD_MILLI)

    def worth_milli(
        self, *, model: Index, cpu_milli: Index, idle_cards: Index
    ) -> NDArray[np.float64]:
        """Say what the idle cards of nodes are worth to pods that are short of them."""
        return self._value[model, self._steps(cpu_milli), idle_cards]

    def _steps(self, cpu_milli: Index) -> Index:
        return np.searchsorted(self._cpu_steps, cpu_milli, "right")
