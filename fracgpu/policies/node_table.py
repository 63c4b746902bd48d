"""The free resources of every node in columns, so that a question to all of them is one sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.policies.least_waste.fill_sequences import MAX_CARDS, Index, Levels
from fracgpu.placement.policies.least_waste.workload_mix import WHOLE_CARD_MILLI, Want

_FIRST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFree:
    """What one node has left.

    Attributes:
        model: the model of its cards; a node is known by one.
        cpu_milli: allocatable less requested CPU.
        memory_mib: allocatable less requested host memory.
        card_milli: what is free of each card in thousandths of that card, rounded down; 0 for a
            card that takes nothing (unhealthy, cordoned, full).
    """

    model: str
    cpu_milli: int
    memory_mib: int
    card_milli: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.card_milli) > MAX_CARDS:
            raise ValueError(f"a node has {len(self.card_milli)} cards; want {MAX_CARDS} at most")
        if any(not 0 <= it <= WHOLE_CARD_MILLI for it in self.card_milli):
            raise ValueError(f"card_milli is {self.card_milli}; want 0 to {WHOLE_CARD_MILLI} each")


class NodeTable:
    """Rows of free resources, one for each node; a dropped node's row is used again.

    Each change of a row gives it a new, higher number, so that whoever derives something from rows
    can tell which ones to derive anew.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self.model = np.zeros(_FIRST_ROWS, np.int64)
        self.cpu_milli = np.full(_FIRST_ROWS, -1, np.int64)  # no pod fits a row without a node
        self.memory_mib = np.full(_FIRST_ROWS, -1, np.int64)
        self.levels: Levels = np.zeros((_FIRST_ROWS, MAX_CARDS), np.int16)
        self.cards_there = np.zeros(_FIRST_ROWS, np.int64)  # full ones and those out of service too
        self.changed = np.zeros(_FIRST_ROWS, np.int64)
        self.now = 0
        self.width = 1
        self.size = 0
        self._spare: list[int] = []
        self._accepts: dict[frozenset[str], NDArray[np.bool_]] = {}

    def add(self) -> int:
        """Give a row to a node that is new."""
        if self._spare:
            return self._spare.pop()
        if self.size == len(self.model):
            self._grow()
        self.size += 1
        return self.size - 1

    def know(self, model: str) -> None:
        """Learn of a card model; the ones known before keep their index."""
        self.models = (*self.models, model)
        self._accepts.clear()

    def put(self, row: int, free: NodeFree) -> None:
        """Write what a node has left now."""
        cards = len(free.card_milli)
        self.model[row] = self.models.index(free.model)
        self.cpu_milli[row] = free.cpu_milli
        self.memory_mib[row] = free.memory_mib
        self.levels[row] = 0
        self.levels[row, :cards] = free.card_milli
        self.cards_there[row] = cards
        self.width = max(self.width, cards)
        self._touch(row)

    def drop(self, row: int) -> None:
        """Forget a node."""
        self.cpu_milli[row] = self.memory_mib[row] = -1
        self.levels[row] = 0
        self.cards_there[row] = 0
        self._touch(row)
        self._spare.append(row)

    def changed_since(self, moment: int) -> Index:
        """Give the rows that changed after *moment*, a former value of ``now``."""
        return np.flatnonzero(self.changed[: self.size] > moment)

    def roomy(self, want: Want) -> Index:
        """Give the rows with the CPU, the host memory and a card model that a pod accepts."""
        fits = (self.cpu_milli[: self.size] >= want.cpu_milli) & (
            self.memory_mib[: self.size] >= want.memory_mib
        )
        if want.cards and want.models is not None:
            fits &= self._accepted(want.models)[self.model[: self.size]]
        return np.flatnonzero(fits)

    def cards(self, row: int, want: Want) -> tuple[int, ...]:
        """Name the tightest cards of a node on which a pod has room, lower numbers first."""
        levels = self.levels[row]
        fitting = np.flatnonzero(levels >= want.share_milli)
        tightest = fitting[np.argsort(levels[fitting], kind="stable")][: want.cards]
        return tuple(sorted(int(it) for it in tightest))

    def _accepted(self, models: frozenset[str]) -> NDArray[np.bool_]:
        found = self._accepts.get(models)
        if found is None:
            if len(self._accepts) >= 256:  # noqa: PLR2004 - far more than a cluster's wordings
                self._accepts.clear()
            found = self._accepts[models] = np.array([it in models for it in self.models], bool)
        return found

    def _touch(self, row: int) -> None:
        self.now += 1
        self.changed[row] = self.now

    def _grow(self) -> None:
        more = len(self.model)
        self.model = np.concatenate((self.model, np.zeros(more, np.int64)))
        self.cpu_milli = np.concatenate((self.cpu_milli, np.full(more, -1, np.int64)))
        self.memory_mib = np.concatenate((self.memory_mib, np.full(more, -1, np.int64)))
        self.levels = np.concatenate((self.levels, np.zeros((more, MAX_CARDS), np.int16)))
        self.cards_there = np.concatenate((self.cards_there, np.zeros(more, np.int64)))
        self.changed = np.concatenate((self.changed, np.zeros(more, np.int64)))
