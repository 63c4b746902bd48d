"""A small cluster with the referee's attributes, for the tests of its adapters."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CARD_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod with the referee's attributes."""

    cpu: int = 1000
    mem: int = 100
    cards: int = 0
    milli: int = 0
    models: frozenset[str] | None = None


@dataclass(slots=True)
class Cluster:
    """Free resources as arrays: equal nodes, of two models in turn."""

    n: int
    model_names: list[str] = field(default_factory=lambda: ["A", "B"])
    touched: list[int] = field(default_factory=list)
    model: NDArray[np.int64] = field(init=False)
    cards: NDArray[np.int64] = field(init=False)
    cpu_free: NDArray[np.int64] = field(init=False)
    mem_free: NDArray[np.int64] = field(init=False)
    card_free: NDArray[np.int64] = field(init=False)
    gpu_free: NDArray[np.int64] = field(init=False)
    cpu_cap: NDArray[np.int64] = field(init=False)
    mem_cap: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.model = np.arange(self.n) % 2
        self.cards = np.full(self.n, 2)
        self.cpu_free = np.full(self.n, 16_000)
        self.mem_free = np.full(self.n, 100_000)
        self.cpu_cap, self.mem_cap = self.cpu_free.copy(), self.mem_free.copy()
        self.card_free = np.zeros((self.n, 8), np.int64)
        self.card_free[:, :2] = CARD_MILLI
        self.gpu_free = self.card_free.sum(1)

    def place(self, pod: Pod, node: int, cards: tuple[int, ...]) -> None:
        self.cpu_free[node] -= pod.cpu
        self.mem_free[node] -= pod.mem
        for card in cards:
            self.card_free[node, card] -= pod.milli
        self.gpu_free[node] = self.card_free[node].sum()
        self.touched.append(node)


HALF = Pod(cards=1, milli=500)
PAIR = Pod(cards=2, milli=CARD_MILLI)
NAMED = Pod(cards=1, milli=CARD_MILLI, models=frozenset({"B"}))
PROCESSOR = Pod(cpu=4000)
HISTORY = (HALF, HALF, PAIR, NAMED, PROCESSOR)
