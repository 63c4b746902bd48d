"""What `least_waste` compares of nodes, as arrays with a row for each.

The rows are those of the `NodeMatrix`. That has absolute amounts; this has thousandths of a card,
and what pods leave of a node's CPU.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.k8s.resources import NO_HOST_RESOURCES
from fracgpu.placement.fit import ABSENT, SHARES, USABLE
from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray, NodeMatrix
from fracgpu.state.bound_pod_index import BoundPodIndex

MAX_CARDS: Final = 32
"""Most cards of one node that `least_waste` knows; as least_waste.c has it."""

_UNBOUNDED_MILLI: Final = 10**9
_MOST_MIB: Final = 2**31 - 1


class PolicyNodes:
    """Free resources by node, kept in step with the node matrix and the bound pods.

    Attributes:
        model: [row] index into the matrix's models; -1 for a row whose node shares no cards.
        cpu_milli: [row] free thousandths of a core; negative if overcommitted.
        cards: [row] how many cards the node has, full and unhealthy ones included.
        levels: [row, card] free thousandths, rounded down; 0 for a card that takes nothing
            (unhealthy, cordoned, full) or only what fits on no other.
        size_mib: [row, card] the card's capacity.
        changed: [row] the number of the row's latest change.
        now: the number of the latest change; it grows by one for each row.
    """

    def __init__(self, matrix: NodeMatrix, bound_pods: BoundPodIndex) -> None:
        self._matrix, self._bound_pods = matrix, bound_pods
        self._matrix_observed = self._pods_observed = -1
        self._behind: set[int] = set()
        self.now = 0
        self._allocate(1)

    def _allocate(self, rows: int) -> None:
        self.model: IntArray = np.full(rows, -1, np.int64)
        self.cpu_milli: IntArray = np.zeros(rows, np.int64)
        self.cards: IntArray = np.zeros(rows, np.int64)
        self.changed: IntArray = np.zeros(rows, np.int64)
        self.levels: NDArray[np.int16] = np.zeros((rows, MAX_CARDS), np.int16)
        self.size_mib: NDArray[np.int32] = np.ones((rows, MAX_CARDS), np.int32)

    def keep_up(self, most: int | None = None) -> bool:
        """Copy nodes that changed, *most* at a time; return whether all are."""
        matrix, pods = self._matrix, self._bound_pods
        if self._matrix_observed != matrix.now or self._pods_observed != pods.now:
            touched = pods.changed_since(self._pods_observed)
            self._behind.update(matrix.changed_since(self._matrix_observed).tolist())
            self._behind.update(matrix.rows[name] for name in touched if name in matrix.rows)
            self._matrix_observed, self._pods_observed = matrix.now, pods.now
        if self._behind:
            rows = sorted(self._behind)[:most]
            self._behind.difference_update(rows)
            self._copy(np.array(rows, np.int64))
        return not self._behind

    def _copy(self, rows: IntArray) -> None:
        matrix, width = self._matrix, min(self._matrix.width, MAX_CARDS)
        self._make_room(len(matrix.changed))
        capacity = np.maximum(matrix.capacity_mib[rows, :width], 1)
        levels = matrix.free_mib[rows, :width] * WHOLE_CARD_MILLI // capacity
        state = matrix.state[rows, :width]
        levels[(state != USABLE) | matrix.avoided[rows, :width]] = 0
        self.levels[rows, :width] = np.clip(levels, 0, WHOLE_CARD_MILLI)
        self.size_mib[rows, :width] = np.minimum(capacity, _MOST_MIB)
        self.cards[rows] = (state != ABSENT).sum(1)
        shares = matrix.node_state[rows] == SHARES
        self.model[rows] = np.where(shares, matrix.model[rows, 0], -1)
        self.cpu_milli[rows] = [self._free_cpu(row) for row in rows.tolist()]
        self.now += len(rows)
        self.changed[rows] = self.now

    def _free_cpu(self, row: int) -> int:
        node_info = self._matrix.infos[row]
        if node_info is None or node_info.node.host == NO_HOST_RESOURCES:
            return _UNBOUNDED_MILLI
        used = self._bound_pods.used(node_info.node.node)
        return node_info.node.host.cpu_milli - used.cpu_milli

    def _make_room(self, rows: int) -> None:
        before = len(self.model)
        if rows > before:
            old = self._arrays()
            self._allocate(rows)
            for array, known in zip(self._arrays(), old, strict=True):
                array[:before] = known

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.model, self.cpu_milli, self.cards, self.changed, self.levels, self.size_mib

    def usual_size_mib(self) -> int:
        """Return the size that most cards have; 1 where there is none."""
        there = np.arange(MAX_CARDS) < self.cards[:, np.newaxis]
        sizes, count = np.unique(self.size_mib[there], return_counts=True)
        return int(sizes[count.argmax()]) if len(sizes) else 1
