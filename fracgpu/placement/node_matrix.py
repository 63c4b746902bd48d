"""Every card of every node in columns, so that one question to all of them is one sweep."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid, Health, model_allowed
from fracgpu.request.language import FULL_CORES
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeLoads

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNSEEN: Final = 0
"""The row that stands for every node we do not know."""

# What a card is, before any request; the figures are also what `fracgpu.placement.fit_index` counts
# by.
USABLE, UNHEALTHY, CORDONED, ABSENT = 0, 1, 2, 9

# What a node is.
SHARES, NOT_SHARED, UNSCHEDULABLE, EMPTY, UNKNOWN, UNREADABLE = 0, 1, 2, 3, 4, 8

_FIRST_ROWS: Final = 64


class Board:
    """The ledger's cards as arrays over rows (nodes) and columns (cards in index order).

    It is brought up to date by :meth:`refresh`, which looks only at nodes that changed; whoever
    derives something from rows asks :meth:`changed_since`.

    Args:
        ledger: what it shows. Nobody else may ask that ledger what changed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rows: dict[str, int] = {}
        self.now = 0
        self.size = 1
        self.width = 1
        self._packed = 0
        self._spare: list[int] = []
        self.names: list[str] = [""]
        self.loads: list[NodeLoads | None] = [None]
        self._models: dict[str, int] = {}
        self._allocate(_FIRST_ROWS, 1)
        self.node_state[UNSEEN] = UNKNOWN

    def _allocate(self, rows: int, width: int) -> None:
        cells = (rows, width)
        self.free_mib = np.zeros(cells, np.int64)
        self.capacity_mib = np.ones(cells, np.int64)
        self.free_cores = np.zeros(cells, np.int64)
        self.free_slots = np.zeros(cells, np.int64)
        self.heat = np.zeros(cells, np.float64)
        self.state = np.full(cells, ABSENT, np.int8)
        self.model = np.zeros(cells, np.int64)
        self.node_state = np.full(rows, UNKNOWN, np.int8)
        self.changed = np.zeros(rows, np.int64)

    @property
    def ledger(self) -> Ledger:
        """What it shows."""
        return self._ledger

    @property
    def models(self) -> Sequence[str]:
        """Every card model that was ever seen, in the order of their numbers."""
        return tuple(self._models)

    def refresh(self, *, now: datetime) -> None:
        """Take over what changed in the ledger."""
        for name in sorted(self._ledger.changed(now=now)):
            loads = self._ledger.node(name, now=now)
            if loads is None:
                self._drop(name)
            else:
                self._put(name, loads)
        if len(self.rows) > 2 * self._packed:
            self._pack()

    def _pack(self) -> None:
        """Copy names and numbers, so that they lie side by side in memory.

        They came one by one, with much between them; to find thousands then takes a third longer.
        """
        self._packed = len(self.rows)
        numbers: list[int] = np.fromiter(self.rows.values(), np.int64).tolist()
        copies = [name.encode().decode() for name in self.rows]
        self.rows = dict(zip(copies, numbers, strict=True))

    def rows_of(self, names: Sequence[str]) -> Rows:
        """Find the rows of nodes by name; :data:`UNSEEN` for those that are not known."""
        return np.fromiter(map(self.rows.get, names, repeat(UNSEEN)), np.int64, len(names))

    def changed_since(self, moment: int) -> Rows:
        """Give the rows that changed after *moment*, a former value of ``now``."""
        return np.flatnonzero(self.changed[: self.size] > moment)

    def allowed(self, globs: Sequence[str]) -> Flags:
        """Tell of each model, by its number, whether *globs* allow it."""
        return np.array([model_allowed(it, globs=globs) for it in self._models] or [False], bool)

    def _put(self, name: str, loads: NodeLoads) -> None:
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = self._add()
            self.names[row] = name
        cards = tuple(loads.cards.values())
        if len(cards) > self.width:
            self._grow(rows=len(self.changed), width=len(cards))
        self.loads[row] = loads
        self.node_state[row] = _node_state(loads)
        self.state[row] = ABSENT
        for column, load in enumerate(cards):
            self.free_mib[row, column] = load.free_mib
            self.capacity_mib[row, column] = load.card.capacity_mib
            self.free_cores[row, column] = FULL_CORES - load.held_cores
            self.free_slots[row, column] = load.free_slots
            self.heat[row, column] = load.heat
            model = load.card.model
            self.model[row, column] = self._models.setdefault(model, len(self._models))
            if load.card.health is not Health.HEALTHY:
                self.state[row, column] = UNHEALTHY
            else:
                self.state[row, column] = CORDONED if load.cordoned else USABLE
        self._touch(row)

    def _drop(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is not None:
            self.loads[row] = None
            self.names[row] = ""
            self.node_state[row] = UNKNOWN
            self.state[row] = ABSENT
            self._touch(row)
            self._spare.append(row)

    def _touch(self, row: int) -> None:
        self.now += 1
        self.changed[row] = self.now

    def _add(self) -> int:
        if self._spare:
            return self._spare.pop()
        if self.size == len(self.changed):
            self._grow(rows=2 * self.size, width=self.width)
        self.size += 1
        self.names.append("")
        self.loads.append(None)
        return self.size - 1

    def _grow(self, *, rows: int, width: int) -> None:
        before = self.columns()
        had = (len(self.changed), self.width)
        self._allocate(rows, width)
        self.width = width
        for name, column in self.columns().items():
            if column.ndim == 1:
                column[: had[0]] = before[name]
            else:
                column[: had[0], : had[1]] = before[name]

    def columns(self) -> Mapping[str, NDArray[np.generic]]:
        """Give all arrays by name."""
        return {name: it for name, it in vars(self).items() if isinstance(it, np.ndarray)}

    def uuids(self, row: int) -> tuple[CardUuid, ...]:
        """Name the cards of a row by column."""
        loads = self.loads[row]
        return () if loads is None else tuple(loads.cards)


def _node_state(loads: NodeLoads) -> int:
    if not loads.node.shared:
        return NOT_SHARED
    if not loads.node.schedulable:
        return UNSCHEDULABLE
    if loads.node.problem:
        return UNREADABLE
    return SHARES if loads.cards else EMPTY
