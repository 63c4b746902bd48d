"""The policy in plain Python, slow and without any memory: what compiled code is compared with.

It shares the drawn pods with the product, and nothing else.
"""

from collections.abc import Sequence
from math import inf
from statistics import fmean

from fracgpu.placement.policies.least_waste.draws import (
    NO_ROOM,
    SEQUENCES,
    SLOT_BITS,
    draw,
    steps_of,
)
from fracgpu.placement.policies.least_waste.mix import PodClass
from fracgpu.placement.policies.least_waste.nodes import PolicyNodes
from fracgpu.placement.policies.least_waste.prices import Prices
from fracgpu.placement.policies.least_waste.turnover import Weights

Pod = tuple[int, int, int]
"""CPU, cards and thousandths of each."""


class Oracle:
    """Costs of pods on nodes, for one mix and prices that do not change."""

    def __init__(
        self,
        classes: Sequence[PodClass],
        models: Sequence[str],
        nodes: PolicyNodes,
        weights: Weights,
    ) -> None:
        self._classes, self._models, self._weights = classes, models, weights
        steps = steps_of(classes)
        self._draws = [draw(classes, model, steps) for model in models]
        self._prices = Prices(classes, models, weights)
        self._prices.refresh(nodes)

    def rise(
        self, model: int, levels: Sequence[int], cpu: int, cards: Sequence[int], pod: Pod
    ) -> float:
        """Return what a pod costs on some cards of a node; infinite if it does not fit there."""
        taken, _, share = pod
        after = list(levels)
        for card in cards:
            after[card] -= share
        if cpu < taken or min(after, default=0) < 0:
            return inf
        rise = self.cost(model, after, cpu - taken) - self.cost(model, levels, cpu)
        price = float(self._prices.by_model[model])
        return rise + self._prices.idle * sum(levels) + price * share * len(cards)

    def cost(self, model: int, levels: Sequence[int], cpu: int) -> float:
        low = min(cpu // 1000, 256)
        part = (cpu - low * 1000) / 1000 if low < 256 else 0.0
        waste = self._waste(model, levels, low * 1000)
        if part:
            waste += (self._waste(model, levels, low * 1000 + 1000) - waste) * part
        return waste - self._worth(model, cpu, levels.count(1000))

    def _waste(self, model: int, levels: Sequence[int], cpu: int) -> float:
        filled = fmean(self._filled(model, levels, cpu, number) for number in range(SEQUENCES))
        unusable = self._unusable(model, levels, cpu)
        return self._weights.fill * filled + self._weights.fragment * unusable

    def _filled(self, model: int, levels: Sequence[int], cpu: int, sequence: int) -> int:
        """Return what is idle after one sequence of pods."""
        drawn, cards = self._draws[model], sorted(levels, reverse=True)
        for step in range(len(drawn.cpu)):
            several = int(drawn.several[step, sequence])
            idle = [at for at, level in enumerate(cards) if level == 1000]
            if several and len(idle) >= several and cpu >= drawn.several_cpu[step, sequence]:
                cpu -= int(drawn.several_cpu[step, sequence])
                for at in idle[:several]:
                    cards[at] = 0
            options = []
            for number in (0, 1):
                code = int(drawn.share[step, number, sequence])
                need = int(drawn.cpu[step, number, sequence])
                share = code >> SLOT_BITS
                room = [(level, at) for at, level in enumerate(cards) if level >= share]
                if code != NO_ROOM and cpu >= need and room:
                    level, at = min(room)
                    options.append((level - share if share else 0, number, at, share, need))
            if options:  # of a tie the first pod runs
                _, _, at, share, need = min(options)
                cards[at] -= share
                cpu -= need
        return sum(cards)

    def _unusable(self, model: int, levels: Sequence[int], cpu: int) -> float:
        found = 0.0
        for one in self._classes:
            demand = one.demand
            is_share = 0 < demand.share_milli < 1000
            if not (is_share or (demand.cards and self._weights.fragment_of_whole)):
                continue
            enough = [level for level in levels if level >= demand.share_milli]
            runs = (
                len(enough) >= demand.cards
                and demand.accepts(self._models[model])
                and demand.cpu_milli <= cpu
            )
            found += one.frequency_ratio * (sum(levels) - (sum(enough) if runs else 0))
        return found

    def _worth(self, model: int, cpu: int, idle_cards: int) -> float:
        steps = sum(int(step) <= cpu for step in self._prices.cpu_steps)
        return float(self._prices.worth[model, steps, idle_cards])
