"""Small workloads and nodes for the tests of policies."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fracgpu.placement.node_matrix import Demand, FreeResources
from fracgpu.placement.policies.least_waste.fill.compiled_options import NodeArrays
from fracgpu.placement.policies.least_waste.fill.fill_sequences import (
    Fill,
    FillSequences,
    drawing,
    fastest_fill,
)
from fracgpu.placement.policies.least_waste.fill.pod_sequences import PodSequences
from fracgpu.placement.policies.least_waste.workload_mix import PodClass, WorkloadMix

MODELS = ("A100", "T4")

HALF = Demand(cpu_milli=4000, cards=1, share_milli=500)
ODD = Demand(cpu_milli=2000, cards=1, share_milli=810)
WHOLE = Demand(cpu_milli=8000, cards=1, share_milli=1000)
PICKY = Demand(cpu_milli=8000, cards=1, share_milli=1000, models=frozenset({"A100"}))
PAIR = Demand(cpu_milli=16_000, cards=2, share_milli=1000)
EIGHT = Demand(cpu_milli=64_000, cards=8, share_milli=1000)
PROCESSOR = Demand(cpu_milli=12_000)

EVERY = (HALF, ODD, WHOLE, PICKY, PAIR, EIGHT, PROCESSOR)


def mix() -> tuple[PodClass, ...]:
    counts = {HALF: 30, ODD: 10, WHOLE: 40, PICKY: 5, PAIR: 6, EIGHT: 4, PROCESSOR: 10}
    return WorkloadMix.fold(
        demand for demand, count in counts.items() for _ in range(count)
    ).classes()


def a_fill(
    classes: Sequence[PodClass],
    models: Sequence[str] = MODELS,
    *,
    fill: Callable[[PodSequences], Fill] = fastest_fill,
) -> FillSequences:
    found: list[FillSequences] = []

    def steps() -> Iterator[None]:
        found.append(FillSequences((yield from drawing(classes, models)), fill=fill))

    for _ in steps():
        pass
    return found[0]


def known_nodes(rows: int) -> NodeArrays:
    """Return nodes as they are, of all of which it is known that nothing is wasted."""
    return NodeArrays(
        *(np.zeros(rows, np.uint64), np.zeros(rows, np.float32), np.zeros(rows, np.float32)),
        idle_cards=np.zeros(rows, np.int64),
        idle_milli=np.zeros(rows, np.int64),
        cost=np.zeros(rows),
    )


def node(*card_milli: int, model: str = "A100", cores: int = 96) -> FreeResources:
    return FreeResources(
        model=model, cpu_milli=cores * 1000, memory_mib=1_000_000, card_milli=card_milli
    )


def varied_mix(classes: int = 1_000) -> tuple[PodClass, ...]:
    """Return a mix that is long to learn: shares that need many pivots, and many other classes."""
    # So many sizes, of which many fit on a card in many ways.
    shares = [Demand(cpu_milli=1000, cards=1, share_milli=50 + 11 * at) for at in range(24)]
    others = [
        Demand(cpu_milli=2000 + 7 * at, cards=1 + at % 8, share_milli=1000)
        for at in range(classes - len(shares))
    ]
    return tuple(
        PodClass(demand=demand, frequency_ratio=ratio / len(demands))
        for demands, ratio in ((shares, 0.9), (others, 0.1))
        for demand in demands
    )
