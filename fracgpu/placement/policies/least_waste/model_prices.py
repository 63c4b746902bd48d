"""What a part of a card is worth because of its model alone, to pods that accept few models.

Pods that name models can only go where one of these is left, and every pod that does not mind the
model makes that less. A named set of models sets a price on each of them, paid for every part of a
card, whole or broken, so that pods which accept other models go there:

- the demand confined to the set over the set's share of what is *idle*, squared and 1 at most: how
  soon it runs out, as things are now; times
- the demand confined to the set over its share of *all* cards, to the fourth and 1 at most: whether
  it can run out at all. Where a set has plenty of cards, sending others away gains nothing, and
  costs what suits them less (a card beside much CPU, say).

`scarcity` prices whole idle cards only, and shares set no price in it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import Index
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

_STEEPNESS: Final = 2
_SLACK_STEEPNESS: Final = 4
# Beyond this many sets the ones with least demand set no price; comparing them all is quadratic.
_MOST_SETS: Final = 256


class ModelPrices:
    """Prices of a card's parts by model, for the mix and what is idle.

    Args:
        classes: the workload's mix.
        models: the card models; a node is known by the index of its model in here.

    Attributes:
        by_model: for each model, what a part of a card costs, as a multiple of that part.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        demand: dict[tuple[bool, ...], float] = {}
        total = 0.0
        for it in classes:
            asked = it.frequency_ratio * it.demand.gpu_milli
            total += asked
            accepts = tuple(it.demand.accepts(model) for model in models)
            if asked and any(accepts) and not all(accepts):
                demand[accepts] = demand.get(accepts, 0.0) + asked
        largest = sorted(demand.items(), key=lambda it: (-it[1], it[0]))[:_MOST_SETS]
        self._sets = np.array([accepts for accepts, _ in largest], bool)
        self._sets = self._sets.reshape(len(largest), len(models))
        asked_of = np.array([asked for _, asked in largest], float)
        # [set, other]: who accepts only models of the other accepts only models of the set.
        inside = ~(self._sets[None, :, :] & ~self._sets[:, None, :]).any(2)
        self._confined = inside @ asked_of / total if total else asked_of
        self.by_model: NDArray[np.float64] = np.zeros(len(models))

    def refresh(self, *, model: Index, idle_milli: Index, cards: Index) -> None:
        """Set the prices anew.

        Args:
            model: of each node.
            idle_milli: thousandths of a card that are idle on each node, in parts or whole.
            cards: of each node.
        """
        if not len(self._sets):
            return
        now = self._pressure(model, idle_milli) ** _STEEPNESS
        ever = self._pressure(model, cards) ** _SLACK_STEEPNESS
        # A model in several named sets is as dear as to the one that needs it most.
        self.by_model = (self._sets * (now * ever)[:, None]).max(0)

    def _pressure(self, model: Index, amount: Index) -> NDArray[np.float64]:
        """Give the demand confined to each set over the set's share of an amount, 1 at most."""
        of_model = np.bincount(model, weights=amount, minlength=len(self.by_model))
        share = self._sets @ of_model / max(of_model.sum(), 1.0)
        with np.errstate(divide="ignore"):
            return np.minimum(np.where(share > 0, self._confined / share, np.inf), 1.0)
