"""What `least_waste` compares of nodes, as arrays with a row for each."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fracgpu.placement.node_matrix import (
    MAX_CARDS,
    Columns,
    Demand,
    Flags,
    FreeResources,
    IntArray,
    Levels,
)

_FIRST_ROWS: Final = 64


class FreeResourceTable:
    """Free resources by node, one row each; a dropped node's row is used again.

    Each change of a row gives it a new, higher number, so that derived data can follow row by row.

    Attributes:
        models: the card models; *model* holds indexes into these.
        model: [row] the model of the node's cards.
        cpu_milli: [row] free thousandths of a core; -1 for a row without a node.
        memory_mib: [row] free MiB of host memory; -1 for a row without a node.
        levels: [row, card] free thousandths of each card; 0 if there is no card.
        cards_there: [row] how many cards the node has, full and unhealthy ones included.
        changed: [row] the number of the row's latest change.
        now: the number of the latest change.
        width: most cards of any node so far; the columns of *levels* beyond are 0.
        size: rows in use, rows to be reused included.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self.model = np.zeros(_FIRST_ROWS, np.int64)
        self.cpu_milli = np.full(_FIRST_ROWS, -1, np.int64)  # so that no demand fits
        self.memory_mib = np.full(_FIRST_ROWS, -1, np.int64)
        self.levels: Levels = np.zeros((_FIRST_ROWS, MAX_CARDS), np.int16)
        self.cards_there = np.zeros(_FIRST_ROWS, np.int64)
        self.changed = np.zeros(_FIRST_ROWS, np.int64)
        self.now, self.size, self.width = 0, 0, 1
        self._spare: list[int] = []
        self._accepts: dict[frozenset[str] | None, Flags] = {}

    def add(self) -> int:
        """Return a row for a new node."""
        if self._spare:
            return self._spare.pop()
        if self.size == len(self.model):
            self._grow()
        self.size += 1
        return self.size - 1

    def add_model(self, model: str) -> None:
        """Add a card model; the others keep their index."""
        self.models = (*self.models, model)
        self._accepts.clear()

    def put(self, row: int, free: FreeResources) -> None:
        """Set what a node has free now."""
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
        """Remove a node; its row may be reused."""
        self.cpu_milli[row] = self.memory_mib[row] = -1
        self.levels[row] = self.cards_there[row] = 0
        self._touch(row)
        self._spare.append(row)

    def changed_since(self, moment: int) -> IntArray:
        """Return the rows that changed after *moment*, an earlier ``now``."""
        return np.flatnonzero(self.changed[: self.size] > moment)

    def candidate_rows(self, demand: Demand, among: IntArray | None = None) -> IntArray:
        """Return the rows, of all or *among* some, with CPU and memory and an accepted model.

        They ascend. Whether the cards have room is not checked here; see `PlacementOptions`.
        """
        rows = slice(self.size) if among is None else np.sort(among)
        fits = self.cpu_milli[rows] >= demand.cpu_milli
        fits &= self.memory_mib[rows] >= demand.memory_mib
        fits &= self.accepted(demand)[self.model[rows]]
        return np.flatnonzero(fits) if isinstance(rows, slice) else rows[fits]

    def cards(self, row: int, demand: Demand, closed: Columns = frozenset()) -> tuple[int, ...]:
        """Return the tightest cards of a node, none *closed*, on which a pod fits, by index."""
        levels = self.levels[row]
        fits = levels >= demand.share_milli
        fitting = np.array([at for at in np.flatnonzero(fits) if at not in closed], np.int64)
        tightest = fitting[np.argsort(levels[fitting], kind="stable")][: demand.cards]
        return tuple(sorted(int(column) for column in tightest))

    def accepted(self, demand: Demand) -> Flags:
        """Return [model] whether a pod accepts it; a pod without cards accepts every one."""
        models = demand.models if demand.cards else None
        found = self._accepts.get(models)
        if found is None:
            if len(self._accepts) >= 256:  # noqa: PLR2004 - far more than pods of a cluster name
                self._accepts.clear()
            accepts = [models is None or model in models for model in self.models]
            found = self._accepts[models] = np.array(accepts, bool)
        return found

    def _touch(self, row: int) -> None:
        self.now += 1
        self.changed[row] = self.now

    def _grow(self) -> None:
        zeros = np.zeros(len(self.model), np.int64)
        self.model = np.concatenate((self.model, zeros))
        self.cpu_milli = np.concatenate((self.cpu_milli, zeros - 1))
        self.memory_mib = np.concatenate((self.memory_mib, zeros - 1))
        self.levels = np.concatenate((self.levels, np.zeros_like(self.levels)))
        self.cards_there = np.concatenate((self.cards_there, zeros))
        self.changed = np.concatenate((self.changed, zeros))
