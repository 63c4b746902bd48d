"""All cards of all nodes as arrays: a question about every node is a few array operations.

`NodeMatrix` has absolute amounts (MiB, per cent of a card's compute, slots) and answers which nodes
fit. It has one row for each node, reuses the rows of removed nodes, and numbers its changes, so
that derived data follows row by row.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from operator import itemgetter
from struct import pack
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import FULL_CORES, CardUuid, Health
from fracgpu.cards.card_class import model_allowed
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import CardInfo, NodeInfo

IntArray = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNSEEN: Final = 0
"""The row that stands for every unknown node; its state is always UNKNOWN."""

# The state of a card before any request. `fracgpu.placement.fit_index` continues the numbering with
# its own reasons, 3 to 7; ABSENT marks a cell of a row without a card.
USABLE, UNHEALTHY, CORDONED, ABSENT = 0, 1, 2, 9

# The state of a node. `fracgpu.placement.fit_index` uses the same numbers in its verdicts.
SHARES, NOT_SHARED, UNSCHEDULABLE, EMPTY, UNKNOWN, UNREADABLE = 0, 1, 2, 3, 4, 8

_FIRST_ROWS: Final = 64

WHOLE_CARD_MILLI: Final = 1000


class NodeMatrix:
    """The ledger's cards as arrays over rows (nodes) and columns (cards in index order).

    :meth:`refresh` brings it up to date and looks only at nodes that changed; derived data follows
    by :meth:`changed_since`. Arrays grow by doubling, so they may have more rows than *size*. A
    node with fewer than *width* cards leaves its last columns ABSENT; the other values of an ABSENT
    cell mean nothing.

    Args:
        ledger: where the cards come from. Its set of changed nodes has one consumer, this matrix.

    Attributes:
        rows: the row of each node, by name.
        names: the node of each row; empty for a row without a node.
        infos: the node of each row as the ledger has it; None for a row without a node.
        now: the number of the latest change.
        changed: [row] the number of the row's latest change.
        size, width: rows in use, UNSEEN and rows to be reused included; and columns.
        free_mib: [row, column] MiB; negative if capacity shrank below what pods hold.
        capacity_mib: [row, column] MiB.
        free_cores: [row, column] per cent of the card's compute.
        free_slots: [row, column] how many more containers may share the card.
        heat: [row, column] how busy the card was lately, 0..1; 1 if unknown.
        state: [row, column] USABLE, UNHEALTHY, CORDONED or ABSENT.
        avoided: [row, column] the card is taken only where no other fits.
        model: [row, column] index into *models*.
        node_state: [row] SHARES or why the node shares nothing.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rows: dict[str, int] = {}
        self._behind: set[str] = set()  # changed in the ledger, and not copied yet
        self.now = self._packed = 0
        self.size = self.width = 1
        self._spare: list[int] = []
        self.names: list[str] = [""]
        self.infos: list[NodeInfo | None] = [None]
        self._models: dict[str, int] = {}
        self._allocate(_FIRST_ROWS, 1)
        self.node_state[UNSEEN] = UNKNOWN

    def _allocate(self, rows: int, width: int) -> None:
        cells = rows, width
        # The rows of a node are written at once.
        self._amounts = np.zeros((5, *cells), np.int64)
        self.free_mib, self.capacity_mib, self.free_cores, self.free_slots, self.model = (
            self._amounts
        )
        self.capacity_mib[:] = 1
        self._flags: NDArray[np.int8] = np.zeros((2, *cells), np.int8)
        self.state, self.avoided = self._flags[0], self._flags[1].view(np.bool_)
        self.state[:] = ABSENT
        self.heat = np.zeros(cells, np.float64)
        self.node_state = np.full(rows, UNKNOWN, np.int8)
        self.changed = np.zeros(rows, np.int64)

    @property
    def ledger(self) -> Ledger:
        """Where the cards come from."""
        return self._ledger

    @property
    def models(self) -> Sequence[str]:
        """Every card model ever seen; `model` holds indexes into these."""
        return tuple(self._models)

    def refresh(self, *, now: datetime, most: int | None = None) -> bool:
        """Copy the nodes that changed in the ledger, *most* at a time; return whether all are."""
        changed = self._ledger.take_changed(now=now)
        if not changed and not self._behind:
            return True
        self._behind |= changed
        for name in sorted(self._behind)[:most]:
            self._behind.remove(name)
            node_info = self._ledger.node(name, now=now)
            if node_info is None:
                self._drop(name)
            else:
                self._put(name, node_info)
        if len(self.rows) > 2 * self._packed:
            self._pack()
        return not self._behind

    def _pack(self) -> None:
        """Copy the keys and values of `rows`, so that they lie side by side in memory.

        Names that arrive one by one are scattered over the heap, and `rows_of` then takes a third
        longer. Encoding and decoding copies each string, and the array each number.
        """
        self._packed = len(self.rows)
        row_numbers: list[int] = np.fromiter(self.rows.values(), np.int64).tolist()
        copies = [name.encode().decode() for name in self.rows]
        self.rows = dict(zip(copies, row_numbers, strict=True))

    def rows_of(self, names: Sequence[str]) -> IntArray:
        """Return the rows of nodes by name; :data:`UNSEEN` for unknown ones."""
        try:
            found = itemgetter(*names)(self.rows)  # takes a third of the time of a call for each
            return np.frombuffer(pack(f"{len(names)}q", *found), np.int64)
        except (KeyError, TypeError):  # an unknown name; none at all, or a single one
            pass
        return np.fromiter(map(self.rows.get, names, repeat(UNSEEN)), np.int64, len(names))

    def changed_since(self, moment: int) -> IntArray:
        """Return the rows that changed after *moment*, an earlier ``now``."""
        return np.flatnonzero(self.changed[: self.size] > moment)

    def allowed(self, globs: Sequence[str]) -> Flags:
        """Return whether *globs* allow each of `models`; one False if there are none."""
        flags = [model_allowed(model, globs=globs) for model in self._models]
        return np.array(flags or [False], bool)

    def _put(self, name: str, node_info: NodeInfo) -> None:
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = self._add()
            self.names[row] = name
        cards = tuple(node_info.cards.values())
        if len(cards) > self.width:
            self._grow(rows=len(self.changed), width=len(cards))
        self.infos[row] = node_info
        self.node_state[row], self.state[row] = _node_state(node_info), ABSENT
        if cards:
            known, width = self._models, len(cards)
            capacity = [card_info.card.capacity_mib for card_info in cards]
            amounts: list[Sequence[int]] = [
                [room - card.taken_mib for room, card in zip(capacity, cards, strict=True)],
                capacity,
                [FULL_CORES - card_info.held_cores for card_info in cards],
                [card_info.free_slots for card_info in cards],
                [known.setdefault(each.card.model, len(known)) for each in cards],
            ]
            flags: list[Sequence[int]] = [
                [_card_state(card_info) for card_info in cards],
                [card_info.avoided for card_info in cards],
            ]
            self._amounts[:, row, :width], self._flags[:, row, :width] = amounts, flags
            self.heat[row, :width] = [card_info.heat for card_info in cards]
        self._touch(row)

    def _drop(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is not None:
            self.infos[row], self.names[row] = None, ""
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
        self.infos.append(None)
        return self.size - 1

    def _grow(self, *, rows: int, width: int) -> None:
        before, old_shape = self.columns(), (len(self.changed), self.width)
        self._allocate(rows, width)
        self.width = width
        for name, column in self.columns().items():
            if column.ndim == 1:
                column[: old_shape[0]] = before[name]
            else:
                column[: old_shape[0], : old_shape[1]] = before[name]

    def columns(self) -> Mapping[str, NDArray[np.generic]]:
        """Return all arrays by name; their first axis is the row."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name[0] != "_"
        }

    def uuids(self, row: int) -> tuple[CardUuid, ...]:
        """Return the cards of a row by column."""
        node_info = self.infos[row]
        return () if node_info is None else tuple(node_info.cards)


def _card_state(card_info: CardInfo) -> int:
    if card_info.card.health is not Health.HEALTHY:
        return UNHEALTHY
    return CORDONED if card_info.cordoned or card_info.kept_for else USABLE


def _node_state(node_info: NodeInfo) -> int:
    if not node_info.node.shared:
        return NOT_SHARED
    if not node_info.node.schedulable:
        return UNSCHEDULABLE
    if node_info.node.problem:
        return UNREADABLE
    return SHARES if node_info.cards else EMPTY
