"""What a part of a card is worth because of its model, to pods that accept few models.

Pods that name models fit only where one of these is free, and pods that accept any model use them
up. So each set of models that pods name sets a price on each of its models, for whole cards and
parts alike, to send pods that accept other models elsewhere. The price is the product of

- the demand confined to the set over the set's share of what is *idle*, squared, at most 1: how
  soon it runs out as things are now;
- the demand confined to the set over its share of *all* cards, to the fourth power, at most 1:
  whether it can run out at all. If a set has plenty of cards, sending other pods away gains nothing
  and may cost something (a card beside much CPU, say).

The other price, `scarcity`, covers whole idle cards only.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import IntArray
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

_IDLE_EXPONENT: Final = 2
_ALL_EXPONENT: Final = 4
# Sets are compared in pairs, so beyond this many the ones with the least demand set no price.
_MAX_SETS: Final = 256


class ModelPrices:
    """Prices of card parts by model, from the workload's mix and what is idle.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.

    Attributes:
        by_model: [model] what a part of a card costs, as a multiple of that part.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        demand: dict[tuple[bool, ...], float] = {}
        total = 0.0
        for pod_class in classes:
            asked = pod_class.frequency_ratio * pod_class.demand.gpu_milli
            total += asked
            accepts = tuple(pod_class.demand.accepts(model) for model in models)
            if asked and any(accepts) and not all(accepts):
                demand[accepts] = demand.get(accepts, 0.0) + asked
        largest = sorted(demand.items(), key=lambda item: (-item[1], item[0]))[:_MAX_SETS]
        # [set, model]: whether the set has the model.
        self._sets = np.array([accepts for accepts, _ in largest], bool)
        self._sets = self._sets.reshape(len(largest), len(models))
        asked_of = np.array([asked for _, asked in largest], float)
        # [set, other]: other is a subset of set, so its demand is confined to set as well.
        inside = ~(self._sets[None, :, :] & ~self._sets[:, None, :]).any(2)
        self._confined = inside @ asked_of / total if total else asked_of
        self.by_model: NDArray[np.float64] = np.zeros(len(models))

    def refresh(self, *, model: IntArray, idle_milli: IntArray, cards: IntArray) -> None:
        """Compute the prices again.

        Args:
            model: [node] index of the card model.
            idle_milli: [node] idle thousandths of a card, in parts or whole.
            cards: [node] number of cards.
        """
        if not len(self._sets):
            return
        now = self._pressure(model, idle_milli) ** _IDLE_EXPONENT
        ever = self._pressure(model, cards) ** _ALL_EXPONENT
        # A model in several sets has the highest price that any of them sets.
        self.by_model[:] = (self._sets * (now * ever)[:, None]).max(0)

    def _pressure(self, model: IntArray, amount: IntArray) -> NDArray[np.float64]:
        """Return [set] the demand confined to the set over its share of *amount*, at most 1."""
        of_model = np.bincount(model, weights=amount, minlength=len(self.by_model))
        share = self._sets @ of_model / max(of_model.sum(), 1.0)
        with np.errstate(divide="ignore"):
            return np.minimum(np.where(share > 0, self._confined / share, np.inf), 1.0)
