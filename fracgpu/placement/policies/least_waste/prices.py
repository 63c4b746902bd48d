"""What cards are worth to pods that can use only some of them, observed or not.

Two prices follow from the workload's mix and from what is idle:

- **Whole idle cards**, for pods that need several cards of one node, a named model or much CPU. The
  part of the idle cards that they can use shrinks faster than the whole. So each class of whole
  cards sets a price on those that it can use: the cards that it requests for each card that all
  pods request, times *s* squared minus one, where *s* is the cluster's idle cards over those that
  the class can use. A pod that takes one of eight idle cards of a node also pays for the other
  seven, which pods of eight can no longer use.
- **Parts of a card of some model**, for pods that accept few models: each set of models that pods
  name has a price, the product of the demand confined to the set over its part of what is *idle*
  (how soon it runs out as things are now) and of that demand over its part of *all* cards (whether
  it can run out at all), each at most 1 and to a power of its own.

A mix says nothing of pods that have not come yet, and a fleet that has run nothing but shares would
have no whole node left for the first pod of eight cards. So classes that the mix lacks count as if
they had been observed (a prior): pods of 2, 4 and 8 cards, less the fuller the cluster is, and pods
that name each of the models, as far as pods do not name models anyway.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray
from fracgpu.placement.policies.least_waste.mix import Demand, PodClass
from fracgpu.placement.policies.least_waste.nodes import MAX_CARDS, PolicyNodes
from fracgpu.placement.policies.least_waste.turnover import Weights

# Parts of all pods by their cards. They count times the idle part of the cluster cubed: unfaded
# they leave CPU stranded. Once this part of the pods has as many cards, the mix speaks for itself.
_PRIOR_RATIO: Final[Mapping[int, float]] = {2: 0.04, 4: 0.04, 8: 0.06}
_PRIOR_CPU_MILLI: Final = 8000
_FADING_EXPONENT: Final = 3
_OBSERVED_RATIO: Final = 0.002
# What scarcity makes of one card at the most, in cards, as far as pods name no models. Less of it
# starves pods of eight cards once few whole nodes are left.
_UNNAMED_LIMIT: Final = 300.0
# Of all pods, by one card, for each model that has a part of all cards worth naming; at most this
# part of the model's cards. More kept them idle until pods without cards, which kube-scheduler puts
# where most CPU is free, had taken the CPU beside them. Once this part of the demand is confined to
# models that pods name, the mix speaks for itself.
_NAMING_RATIO: Final = 0.025
_MOST_OF_A_MODEL: Final = 0.55
_NAMED_PART: Final = 0.01
_NAMES_ENOUGH: Final = 0.15
# Sets are compared in pairs, so beyond this many the ones with the least demand set no price.
_MAX_SETS: Final = 256
# More of the first keeps models for those who name them, and costs allocation once the cluster is
# full: decision 70 has the figures.
_NOW_EXPONENT, _EVER_EXPONENT = 1.5, 1.9
# CPU is ample on a node where so much is free for each that pods request beside its idle cards.
_AMPLE_RATIO: Final = 1.25


class Prices:
    """Prices of idle cards and of card models.

    CPU is compared in steps: the distinct CPU requests of the classes of whole cards, in ascending
    order. A node has reached step *s* if its free CPU is enough for the *s* lowest of them.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.
        weights: how much the price of whole cards counts, and the limit of s squared minus one
            if pods name models.

    Attributes:
        cpu_steps: thousandths of a core, ascending.
        worth: [model, CPU steps reached, idle cards of a node] what those cards are worth, in
            thousandths of a card.
        by_model: [model] what a part of a card costs, as a multiple of that part.
        idle: what a part of a card costs that is idle on the node before the pod.
    """

    def __init__(
        self, classes: Sequence[PodClass], models: Sequence[str], weights: Weights
    ) -> None:
        self._weights, self._count = weights, len(models)
        requested = sum(one.frequency_ratio * one.demand.gpu_milli for one in classes)
        # Cards for each pod; before there is any pod, those of the prior are compared with one.
        self._requested = requested / WHOLE_CARD_MILLI or 1.0
        cpu_milli = sum(one.frequency_ratio * one.demand.cpu_milli for one in classes)
        self._cpu_milli = max(cpu_milli / self._requested, 1.0)  # for each card
        self.idle = weights.idle
        observed = [
            one
            for one in classes
            if one.demand.share_milli == WHOLE_CARD_MILLI and one.demand.cards <= MAX_CARDS
        ]
        priced = [*observed, *_not_observed(classes)]
        self._fades = np.arange(len(priced)) >= len(observed)
        # By cards, not by pods: pods of eight cards are few, and take whole nodes.
        asked = [one.frequency_ratio * one.demand.cards for one in priced]
        self._asked = np.array(asked, float) / self._requested
        cpu = np.array([min(one.demand.cpu_milli, 2**62) for one in priced], np.int64)
        self.cpu_steps = np.unique(cpu)
        self._step = np.searchsorted(self.cpu_steps, cpu) + 1
        self._cards = np.array([one.demand.cards for one in priced], np.int64)
        self._accepts = np.array(
            [[one.demand.accepts(model) for model in models] for one in priced], bool
        ).reshape(len(priced), len(models))
        self.worth = np.zeros((len(models), len(self.cpu_steps) + 1, MAX_CARDS + 1))
        self.by_model: NDArray[np.float64] = np.zeros(len(models))
        self._set_up_sets(classes, models)
        named_limit = weights.premium_limit
        self._limit = named_limit + (_UNNAMED_LIMIT - named_limit) * self._unnamed

    def _set_up_sets(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        """Find the sets of models that pods name; each model by itself follows, for the prior."""
        demand: dict[tuple[bool, ...], float] = {}
        for one in classes:
            accepts = tuple(one.demand.accepts(model) for model in models)
            if one.demand.cards and any(accepts) and not all(accepts):
                asked = one.frequency_ratio * one.demand.gpu_milli / WHOLE_CARD_MILLI
                demand[accepts] = demand.get(accepts, 0.0) + asked / self._requested
        largest = sorted(demand.items(), key=lambda item: (-item[1], item[0]))[:_MAX_SETS]
        alone = np.eye(len(models), dtype=bool)
        shape = len(largest), len(models)  # neither can be told from an empty list
        named = np.array([accepts for accepts, _ in largest], bool).reshape(shape)
        self._sets = np.concatenate((named, alone))  # [set, model]
        self._named = np.array([asked for _, asked in largest] + [0.0] * len(models))
        self._unnamed = max(0.0, 1.0 - float(self._named.sum()) / _NAMES_ENOUGH)
        self._prior = _NAMING_RATIO / self._requested * self._unnamed
        # [set, other]: other is a subset of set, so its demand is confined to set as well.
        self._inside = ~(self._sets[None, :, :] & ~self._sets[:, None, :]).any(2)

    def refresh(self, nodes: PolicyNodes) -> None:
        """Compute the prices again."""
        rows = np.flatnonzero((nodes.model >= 0) & (nodes.model < self._count))
        model, levels = nodes.model[rows], nodes.levels[rows]
        cards = np.bincount(model, nodes.cards[rows], self._count)
        idle = np.bincount(model, levels.sum(1, dtype=float), self._count) / WHOLE_CARD_MILLI
        idle_cards: IntArray = (levels == WHOLE_CARD_MILLI).sum(1)
        self._price_idle_cards(
            model,
            np.searchsorted(self.cpu_steps, nodes.cpu_milli[rows], "right"),
            idle_cards,
            float(idle.sum() / max(cards.sum(), 1.0)),
        )
        self._price_models(cards.astype(float), idle)
        cpu_milli = levels.sum(1, dtype=float) / WHOLE_CARD_MILLI * self._cpu_milli
        ample = float(cpu_milli @ (nodes.cpu_milli[rows] >= _AMPLE_RATIO * cpu_milli))
        # Beside less than half of the idle cards it does not count: the others would strand CPU.
        ample = max(0.0, 2.0 * ample / max(float(cpu_milli.sum()), 1.0) - 1.0)
        self.idle = self._weights.idle + self._weights.ample * ample * self._unnamed

    def _price_idle_cards(
        self, model: IntArray, steps: IntArray, idle_cards: IntArray, idle_part: float
    ) -> None:
        # The same axes as worth: idle cards on nodes of each kind.
        usable = np.zeros_like(self.worth)
        np.add.at(usable, (model, steps, idle_cards), idle_cards)
        # Sums from the end turn "exactly this CPU step and these cards" into "at least".
        usable = np.flip(np.flip(usable, (1, 2)).cumsum(1).cumsum(2), (1, 2))
        reach = (usable[:, self._step, self._cards].T * self._accepts).sum(1)
        scarce = (float(idle_cards.sum()) + 1.0) / (reach + 1.0)
        asked = self._asked * np.where(self._fades, idle_part**_FADING_EXPONENT, 1.0)
        price = asked * np.minimum(scarce**2 - 1.0, self._limit)
        # A class pays at its own step and cards; sums from the start carry the price on to nodes
        # with more of either, and the last line multiplies it by the idle cards.
        paid = np.zeros_like(self.worth)
        which, at_model = np.nonzero(self._accepts)
        np.add.at(paid, (at_model, self._step[which], self._cards[which]), price[which])
        np.cumsum(paid.cumsum(1), 2, out=self.worth)
        self.worth *= np.arange(MAX_CARDS + 1) * (self._weights.scarcity * WHOLE_CARD_MILLI)

    def _price_models(self, cards: NDArray[np.float64], idle: NDArray[np.float64]) -> None:
        named = self._named.copy()
        part = cards / max(float(cards.sum()), 1.0)
        if np.count_nonzero(cards) > 1:  # nobody is confined where there is one model
            prior = np.minimum(self._prior, _MOST_OF_A_MODEL * part)
            named[-self._count :] = prior * (part >= _NAMED_PART)
        confined = self._inside @ named
        now = _pressure(confined, self._sets @ idle / max(float(idle.sum()), 1.0))
        ever = _pressure(confined, self._sets @ part)
        # A model in several sets has the highest price that any of them sets.
        price = now**_NOW_EXPONENT * ever**_EVER_EXPONENT
        self.by_model[:] = (self._sets * price[:, None]).max(0, initial=0.0)


def _pressure(confined: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the demand confined to each set over its part of something, at most 1."""
    ratio = np.divide(confined, part, out=np.ones_like(part), where=part > confined)
    return np.where(confined > 0, ratio, 0.0)


def _not_observed(classes: Sequence[PodClass]) -> Iterator[PodClass]:
    """Yield the classes of the prior, as far as the mix lacks pods of so many cards."""
    for cards, ratio in _PRIOR_RATIO.items():
        observed = sum(one.frequency_ratio for one in classes if one.demand.cards >= cards)
        missing = max(0.0, 1.0 - observed / _OBSERVED_RATIO)
        yield PodClass(
            demand=Demand(
                cpu_milli=cards * _PRIOR_CPU_MILLI, cards=cards, share_milli=WHOLE_CARD_MILLI
            ),
            frequency_ratio=ratio * missing,
        )
