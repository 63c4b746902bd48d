"""Which kinds of pods a cluster gets, and how often: learned from the pods seen so far."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI

_LARGEST_UNIT: Final = 1e9  # beyond this all weights are scaled back, long before they overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one pod requests of a node.

    Attributes:
        cpu_milli: CPU request in thousandths of a core.
        cards: number of distinct cards; 0 for a pod that needs none.
        share_milli: thousandths of each of these cards; 0 where *cards* is 0.
        models: card models accepted; None accepts every model.
    """

    cpu_milli: int = 0
    cards: int = 0
    share_milli: int = 0
    models: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.cards < 0:
            raise ValueError(f"{self} has a negative amount; want 0 or more")
        least = 1 if self.cards else 0
        most = WHOLE_CARD_MILLI if self.cards else 0
        if not least <= self.share_milli <= most:
            raise ValueError(
                f"share_milli is {self.share_milli} with {self.cards} cards; want {least} to {most}"
            )

    @property
    def gpu_milli(self) -> int:
        """Thousandths of a card over all its cards."""
        return self.cards * self.share_milli

    def accepts(self, model: str) -> bool:
        """Report whether it may run on nodes with cards of a model."""
        return not self.cards or self.models is None or model in self.models


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClass:
    """Pods with the same demand, and their share of all pods, 0..1."""

    demand: Demand
    frequency_ratio: float


class WorkloadMix:
    """Counts pods by demand, in bounded memory; older pods weigh less.

    It needs no clock: a pod loses half its weight once *half_life_pods* more have been seen. Rather
    than shrink every weight with each pod, the unit in which the next pod is counted grows. After a
    restart the mix is folded again from the live pods.

    Args:
        capacity: most classes that are kept; the rarest are dropped first.
        half_life_pods: how many newer pods halve the weight of one.

    Attributes:
        pods: how many were counted.
    """

    def __init__(self, *, capacity: int = 512, half_life_pods: float = 10_000) -> None:
        self._capacity = capacity
        self._growth = 2.0 ** (1.0 / half_life_pods)
        self._unit = 1.0
        self._weight: dict[Demand, float] = {}
        self.pods = 0

    def include(self, demand: Demand) -> None:
        """Count a pod with the same weight as the previous one."""
        self.pods += 1
        self._weight[demand] = self._weight.get(demand, 0.0) + self._unit
        if len(self._weight) > 2 * self._capacity:
            self._weight = dict(self._heaviest()[: self._capacity])
        if self._unit > _LARGEST_UNIT:
            self._weight = {demand: weight / self._unit for demand, weight in self._weight.items()}
            self._unit = 1.0

    def observe(self, demand: Demand) -> None:
        """Count a new pod; all earlier ones lose some weight."""
        self._unit *= self._growth
        self.include(demand)

    def classes(self) -> tuple[PodClass, ...]:
        """Return the classes, most frequent first; the same counts always give the same order."""
        total = sum(self._weight.values())
        return tuple(
            PodClass(demand=demand, frequency_ratio=weight / total)
            for demand, weight in self._heaviest()
        )

    def _heaviest(self) -> list[tuple[Demand, float]]:
        return sorted(self._weight.items(), key=lambda item: (-item[1], _order(item[0])))


def drift_ratio(old: Iterable[PodClass], new: Iterable[PodClass]) -> float:
    """Return how far two mixes are apart: 0 for the same, 1 for nothing in common."""
    before, after = ({one.demand: one.frequency_ratio for one in mix} for mix in (old, new))
    return 0.5 * sum(
        abs(before.get(demand, 0.0) - after.get(demand, 0.0))
        for demand in before.keys() | after.keys()
    )


def _order(demand: Demand) -> tuple[int, int, int, tuple[str, ...]]:
    models = tuple(sorted(demand.models)) if demand.models is not None else ()
    return (demand.cards, demand.share_milli, demand.cpu_milli, models)
