"""What kinds of pods a cluster gets, and how often: learned from the pods it has seen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fracgpu.placement.node_matrix import Demand

_LARGEST_UNIT: Final = 1e9  # beyond this the weights are scaled back; ratios stay


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClass:
    """Pods that ask the same, and the share of all pods that they are (0..1)."""

    demand: Demand
    frequency_ratio: float


class WorkloadMix:
    """Counts pods by what they ask, in bounded memory; old pods fade.

    It needs no clock: a pod loses half its weight when *half_life_pods* more have been seen. After
    a restart it is folded again from the pods that live.

    Args:
        capacity: most classes that are kept; the rarest go first.
        half_life_pods: how many newer pods halve the weight of one.
    """

    def __init__(self, *, capacity: int = 512, half_life_pods: float = 10_000) -> None:
        self._capacity = capacity
        self._growth = 2.0 ** (1.0 / half_life_pods)
        self._unit = 1.0
        self._weight: dict[Demand, float] = {}

    @classmethod
    def fold(cls, wants: Iterable[Demand]) -> "WorkloadMix":
        """Learn from pods that are there already, all of the same age."""
        mix = cls()
        for demand in wants:
            mix.include(demand)
        return mix

    def include(self, demand: Demand) -> None:
        """Count a pod that is no newer than those counted before."""
        self._add(demand)

    def observe(self, demand: Demand) -> None:
        """See one more pod."""
        self._unit *= self._growth
        self._add(demand)

    def classes(self) -> tuple[PodClass, ...]:
        """Give the classes, most frequent first; the same counts always give the same order."""
        total = sum(self._weight.values())
        return tuple(
            PodClass(demand=demand, frequency_ratio=weight / total)
            for demand, weight in sorted(
                self._weight.items(), key=lambda it: (-it[1], _order(it[0]))
            )
        )

    def _add(self, demand: Demand) -> None:
        # Host memory is not what leaves cards idle, and would split every class into many.
        key = Demand(
            cpu_milli=demand.cpu_milli,
            cards=demand.cards,
            share_milli=demand.share_milli,
            models=demand.models,
        )
        self._weight[key] = self._weight.get(key, 0.0) + self._unit
        if len(self._weight) > 2 * self._capacity:
            heaviest = sorted(self._weight.items(), key=lambda it: (-it[1], _order(it[0])))
            self._weight = dict(heaviest[: self._capacity])
        if self._unit > _LARGEST_UNIT:
            self._weight = {want: weight / self._unit for want, weight in self._weight.items()}
            self._unit = 1.0


def drift_ratio(old: Iterable[PodClass], new: Iterable[PodClass]) -> float:
    """Tell how far two mixes are apart: 0 for the same, 1 for nothing in common."""
    before, after = _by_want(old), _by_want(new)
    return 0.5 * sum(
        abs(before.get(demand, 0.0) - after.get(demand, 0.0))
        for demand in before.keys() | after.keys()
    )


def _by_want(classes: Iterable[PodClass]) -> Mapping[Demand, float]:
    return {it.demand: it.frequency_ratio for it in classes}


def _order(demand: Demand) -> tuple[int, int, int, tuple[str, ...]]:
    models = tuple(sorted(demand.models)) if demand.models is not None else ()
    return (demand.cards, demand.share_milli, demand.cpu_milli, models)
