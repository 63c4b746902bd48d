"""All cards of all nodes as arrays: a question about every node is a few array operations.

A node's state is there four times, each made of the one before:

1. as facts, decoded once: `NodeCards` (`fracgpu/cards/card.py`) and what each pod holds
   (`PodAllocation` in `fracgpu/state/snapshot.py`); informers and ledger share these objects;
2. as `NodeInfo`, their fold at one moment (`fracgpu/state/snapshot.py`), which the ledger keeps
   until a fact changes; it is immutable, and snapshots and `NodeMatrix.infos` share it;
3. as a row of `NodeMatrix`;
4. as a row of `PolicyNodes` (`policies/least_waste/nodes.py`), which `least_waste` ranks by.

`NodeMatrix` has absolute amounts (MiB, per cent of a card's compute, slots) and answers which nodes
fit. It has one row for each node, reuses the rows of removed nodes, and numbers its changes, so
that derived data follows row by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.cards.card_class import model_allowed
from fracgpu.placement.fit import (
    ABSENT,
    SHARES,
    UNKNOWN,
    Cards,
    Codes,
    cards_of,
    node_reason,
)
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeInfo

IntArray = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNSEEN: Final = 0
"""The row that stands for every unknown node; its state is always UNKNOWN."""

_FIRST_ROWS: Final = 64
_NODES_AT_ONCE: Final = 32

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
        limits_mib: [row, column] what the limits of its containers may add up to; 0 without limits.
        free_limit_mib: [row, column] how much more they may add up to.
        free_cores: [row, column] per cent of the card's compute.
        free_slots: [row, column] how many more containers may share the card.
        pods: [row, column] how many pods hold something of the card.
        heat: [row, column] how busy the card was lately, 0..1; 1 if unknown.
        state: [row, column] USABLE, ABSENT, or the code of why the card takes no slices.
        avoided: [row, column] the card is taken only where no other fits.
        by_claims: [row, column] kube-scheduler allocates the card, to claims.
        model: [row, column] index into *models*.
        node_state: [row] SHARES, UNKNOWN, or the code of why the node shares nothing.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rows: dict[str, int] = {}
        self._behind: set[str] = set()  # changed in the ledger, and not copied yet
        self.now = 0
        self.size = self.width = 1
        self._spare: list[int] = []
        self.names: list[str] = [""]
        self.infos: list[NodeInfo | None] = [None]
        self._models: dict[str, int] = {}
        self._allocate(_FIRST_ROWS, 1)
        self.node_state[UNSEEN] = UNKNOWN

    def _allocate(self, rows: int, width: int) -> None:
        cells = rows, width
        # Column by column in memory: what all cards of a row say together, such as how many fit, is
        # an operation on whole columns then.
        self._amounts = np.zeros((8, width, rows), np.int64).transpose(0, 2, 1)
        self.free_mib, self.capacity_mib, self.limits_mib, self.free_limit_mib = self._amounts[:4]
        self.free_cores, self.free_slots, self.pods, self.model = self._amounts[4:]
        self.capacity_mib[:] = 1
        self.state: Codes = np.full(cells, ABSENT, np.int8, order="F")
        self.avoided: Flags = np.zeros(cells, np.bool_, order="F")
        self.by_claims: Flags = np.zeros(cells, np.bool_, order="F")
        self.heat = np.zeros(cells, np.float64, order="F")
        self.node_state = np.full(rows, UNKNOWN, np.int8)
        self.changed = np.zeros(rows, np.int64)

    @property
    def ledger(self) -> Ledger:
        """Where the cards come from."""
        return self._ledger

    @property
    def models(self) -> tuple[str, ...]:
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
        return not self._behind

    def refreshing(self, now: Callable[[], datetime]) -> Iterator[None]:
        """Copy the nodes that changed in the ledger, in steps of some milliseconds.

        All may have at once, when they are listed again.
        """
        while not self.refresh(now=now(), most=_NODES_AT_ONCE):
            yield

    def show(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Copy the nodes of a snapshot instead of the ledger's."""
        for name in self.rows.keys() - nodes.keys():
            self._drop(name)
        for name in sorted(nodes):
            self._put(name, nodes[name])

    def rows_of(self, names: Sequence[str]) -> IntArray:
        """Return the rows of nodes by name; :data:`UNSEEN` for unknown ones."""
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
        elif node_info is self.infos[row] or node_info == self.infos[row]:
            return  # by value, for our own Binding when it is observed: it was assumed before
        cards = tuple(node_info.cards.values())
        if len(cards) > self.width:
            self._grow(rows=len(self.changed), width=len(cards))
        self.infos[row] = node_info
        refused = node_reason(node_info)
        self.node_state[row] = SHARES if refused is None else refused.code
        self.state[row] = ABSENT
        if cards:
            here, width = cards_of(cards, self._models), len(cards)
            amounts = here.free_mib, here.capacity_mib, here.limits_mib, here.free_limit_mib
            self._amounts[:, row, :width] = np.concatenate(
                (*amounts, here.free_cores, here.free_slots, here.pods, here.model)
            )
            self.state[row, :width], self.avoided[row, :width] = here.state[0], here.avoided[0]
            self.heat[row, :width] = here.heat[0]
            self.by_claims[row, :width] = here.by_claims[0]
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

    def cards(self, rows: IntArray | slice) -> Cards:
        """Return the cards of some rows, column by column in memory as here."""
        found = self.state, self.avoided, self.by_claims, self.heat, *self._amounts
        if isinstance(rows, slice):
            return Cards._make([*(array[rows] for array in found), self.models])
        return Cards._make([*(array.T.take(rows, 1).T for array in found), self.models])

    def uuids(self, row: int) -> tuple[CardUuid, ...]:
        """Return the cards of a row by column."""
        node_info = self.infos[row]
        return () if node_info is None else tuple(node_info.cards)
