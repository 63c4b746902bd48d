"""Which cards of a snapshot would take a whole pod; kept up to date from snapshot to snapshot.

Only nodes that differ from the last snapshot are read again.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.placement.fit_index import cards_for_whole_pod
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.request.need import PodNeed
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeInfo, Snapshot

Cells = NDArray[np.bool_]
"""[row, column]: one flag for each card of each node."""

# The nodes of a snapshot are folded already: the time plays no part in reading them.
ANY_TIME: Final = datetime.min.replace(tzinfo=UTC)
_MOST: Final = 1024  # of the answers that are kept


class _SnapshotLedger(Ledger):
    """Shows the nodes of one snapshot after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: Mapping[str, NodeInfo] = {}
        self._differ: set[str] = set()

    def show(self, snapshot: Snapshot) -> None:
        """Show another snapshot."""
        before, self._shown = self._shown, snapshot.nodes
        if before is snapshot.nodes:
            return
        self._differ |= {name for name, info in self._shown.items() if before.get(name) is not info}
        self._differ |= before.keys() - self._shown.keys()

    def take_changed(self, *, now: datetime) -> frozenset[str]:  # noqa: ARG002 - the interface
        changed, self._differ = frozenset(self._differ), set()
        return changed

    def node(self, name: str, *, now: datetime) -> NodeInfo | None:  # noqa: ARG002 - the interface
        return self._shown.get(name)


class SnapshotIndex:
    """The cards of the latest snapshot as arrays, and where each need fits.

    Attributes:
        evaluated: how often all cards were looked at, because no answer was kept.
    """

    def __init__(self) -> None:
        self.evaluated = 0
        self._ledger = _SnapshotLedger()
        self._matrix = NodeMatrix(self._ledger)
        self._found: dict[PodNeed, Cells] = {}
        self._places: dict[CardUuid, tuple[int, int]] = {}
        self._without: dict[frozenset[CardUuid], Cells] = {}
        self._seen = -1

    def matrix(self, snapshot: Snapshot) -> NodeMatrix:
        """Return the cards of a snapshot as arrays; the matrix is the same for every snapshot."""
        self._ledger.show(snapshot)
        self._matrix.refresh(now=ANY_TIME)
        if self._seen != self._matrix.now:
            self._seen = self._matrix.now
            self._found.clear()
            self._places.clear()
            self._without.clear()
        return self._matrix

    def fitting(self, need: PodNeed, snapshot: Snapshot) -> Cells:
        """Return the cards on each of which the whole pod would fit."""
        matrix = self.matrix(snapshot)
        found = self._found.get(need)
        if found is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            self.evaluated += 1
            found = self._found[need] = cards_for_whole_pod(matrix, need)
        return found

    def without(self, excluded: frozenset[CardUuid], snapshot: Snapshot) -> Cells:
        """Return the cards that are not among *excluded*; unknown ones are ignored."""
        matrix = self.matrix(snapshot)
        found = self._without.get(excluded)
        if found is None:
            if len(self._without) >= _MOST:
                self._without.clear()
            self.evaluated += 1
            found = np.ones((matrix.size, matrix.width), np.bool_)
            places = self.places(snapshot)
            for card in excluded:
                if card in places:
                    found[places[card]] = False
            self._without[excluded] = found
        return found

    def places(self, snapshot: Snapshot) -> Mapping[CardUuid, tuple[int, int]]:
        """Return the row and column of each card."""
        matrix = self.matrix(snapshot)
        if not self._places:
            for row, node_info in enumerate(matrix.infos):
                for column, uuid in enumerate(node_info.cards if node_info else ()):
                    self._places[uuid] = (row, column)
        return self._places
