"""Small workloads and nodes for the tests of the policy."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.policies.least_waste.library import LIBRARY
from fracgpu.placement.policies.least_waste.mix import Demand, PodClass, WorkloadMix
from fracgpu.placement.policies.least_waste.nodes import PolicyNodes
from fracgpu.placement.policies.least_waste.policy import Kind, LeastWaste
from fracgpu.placement.policies.least_waste.turnover import FILLING, Weights
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger

MODELS = ("A100", "T4")
SIZE_MIB = 1000  # of every card, so that MiB are thousandths of a card

HALF = Demand(cpu_milli=4000, cards=1, share_milli=500)
ODD = Demand(cpu_milli=2000, cards=1, share_milli=810)
WHOLE_CARD = Demand(cpu_milli=8000, cards=1, share_milli=1000)
PICKY = Demand(cpu_milli=8000, cards=1, share_milli=1000, models=frozenset({"A100"}))
PAIR = Demand(cpu_milli=16_000, cards=2, share_milli=1000)
EIGHT = Demand(cpu_milli=64_000, cards=8, share_milli=1000)
PROCESSOR = Demand(cpu_milli=12_000)


class SomeNodes(PolicyNodes):
    """Nodes as the policy compares them, without a cluster behind them."""

    def __init__(self) -> None:
        super().__init__(NodeMatrix(Ledger()), BoundPodIndex())
        self._next = 0

    def put(self, row: int, *levels: int, model: int = 0, cpu_milli: int = 96_000) -> None:
        """Set what a node has free; a row beyond the last one is a new node."""
        self._make_room(row + 1)
        self.model[row], self.cpu_milli[row], self.cards[row] = model, cpu_milli, len(levels)
        self.levels[row] = 0
        self.levels[row, : len(levels)] = levels
        self.size_mib[row] = SIZE_MIB
        self.now += 1
        self.changed[row] = self.now

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.cards)


def some_nodes(*levels: Sequence[int], model: int = 0, cores: int = 96) -> SomeNodes:
    found = SomeNodes()
    for row, of_node in enumerate(levels):
        found.put(row, *of_node, model=model, cpu_milli=cores * 1000)
    return found


def mix() -> tuple[PodClass, ...]:
    counts = {HALF: 30, ODD: 10, WHOLE_CARD: 40, PICKY: 5, PAIR: 6, EIGHT: 4, PROCESSOR: 10}
    return folded(demand for demand, count in counts.items() for _ in range(count))


def folded(demands: Iterable[Demand]) -> tuple[PodClass, ...]:
    """Return the mix of pods of the same weight."""
    mix = WorkloadMix()
    for demand in demands:
        mix.include(demand)
    return mix.classes()


def a_policy(
    nodes: PolicyNodes,
    classes: Sequence[PodClass] | None = None,
    *,
    models: Sequence[str] = MODELS,
    weights: Weights = FILLING,
) -> LeastWaste:
    assert LIBRARY.rank is not None, LIBRARY.problem
    policy = LeastWaste(
        mix() if classes is None else classes, models, nodes, weights=weights, rank=LIBRARY.rank
    )
    for _ in policy.building():
        pass
    return policy


def kind(demand: Demand) -> Kind:
    return Kind(
        mib=demand.share_milli * SIZE_MIB // 1000, cards=demand.cards, cpu_milli=demand.cpu_milli
    )


def chosen(
    policy: LeastWaste, nodes: SomeNodes, demand: Demand
) -> tuple[int, tuple[int, ...]] | None:
    """Return the best node and its cards; None if the pod fits on none."""
    rows = nodes.rows
    rows = rows[[demand.accepts(MODELS[model]) for model in nodes.model[rows]]]
    cost = policy.costs(kind(demand), rows)
    if not np.isfinite(cost).any():
        return None
    best = int(rows[cost.argmin()])
    bits = policy.taken(kind(demand), best, closed=0, allowance=0)
    assert bits is not None
    return best, tuple(card for card in range(32) if bits >> card & 1)
