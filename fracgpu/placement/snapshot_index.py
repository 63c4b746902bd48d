"""Which cards of a snapshot would take a whole pod, and which of them the scheduler would choose.

It is kept up to date from snapshot to snapshot: only nodes that differ from the last one are read
again.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.placement.node_matrix import IntArray, NodeMatrix
from fracgpu.placement.placement import (
    SCORING,
    allocation_on_one_card,
    cards_for_pod,
    coolest_first,
)
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo, Snapshot

Cells = NDArray[np.bool_]
"""[row, column]: one flag for each card of each node."""

# The nodes of a snapshot are folded already: the time plays no part in reading them.
ANY_TIME: Final = datetime.min.replace(tzinfo=UTC)
_MOST: Final = 1024  # of the answers that are kept


class SnapshotIndex:
    """The cards of the latest snapshot as arrays, and where each need fits.

    Attributes:
        evaluated: how often all cards were looked at, because no answer was kept.
    """

    def __init__(self) -> None:
        self.evaluated = 0
        self._matrix = NodeMatrix(Ledger())
        self._shown: Mapping[str, NodeInfo] = {}
        self._bound_pods = BoundPodIndex()
        self._least_waste = LeastWasteOrder(self._matrix, self._bound_pods, now=lambda: ANY_TIME)
        self._found: dict[PodNeed, Cells] = {}
        self._places: dict[CardUuid, tuple[int, int]] = {}
        self._without: dict[frozenset[CardUuid], Cells] = {}
        self._as_of = -1

    def matrix(self, snapshot: Snapshot) -> NodeMatrix:
        """Return the cards of a snapshot as arrays; the matrix is the same for every snapshot."""
        if self._shown is not snapshot.nodes:
            self._shown = snapshot.nodes
            self._matrix.show(snapshot.nodes)
        if self._as_of != self._matrix.now:
            self._as_of = self._matrix.now
            self._found.clear()
            self._places.clear()
            self._without.clear()
        return self._matrix

    def observe(self, changes: Mapping[str, BoundPod | None]) -> None:
        """Record bound pods by UID as they are now, None for one that is gone: what CPU they take.

        They have to be told once, and then those that changed.
        """
        for uid, pod in changes.items():
            if pod is None:
                gone = self._bound_pods.remove(uid)
                if gone is not None:
                    self._least_waste.forget(gone)
            elif self._bound_pods.put(pod):
                self._least_waste.observe(pod)

    def learn(self, snapshot: Snapshot, strategies: Iterable[Strategy]) -> None:
        """Learn from the bound pods what one of *strategies* has to know, if they have changed."""
        if Strategy.LEAST_WASTE in strategies:
            self.matrix(snapshot)
            self._least_waste.learn_now(ahead=False)

    def preference(
        self,
        pod: PodInfo,
        rows: IntArray,
        columns: IntArray,
        *,
        strategy: Strategy,
        snapshot: Snapshot,
    ) -> NDArray[np.float64]:
        """Return how gladly the scheduler extender would give a pod each of some cards.

        Args:
            pod: it fits on each of them, and has a need.
            rows: the node of each card in `matrix`.
            columns: the card's place in that row.
            strategy: the cluster's default; a pod's own strategy overrides it.
            snapshot: the nodes.

        Returns:
            [card] higher is better. Avoided cards come after all others.
        """
        need = pod.need
        assert need is not None, "a pod that is placed has a need"
        matrix = self.matrix(snapshot)
        strategy = need.strategy or strategy
        cells = rows, columns
        left = matrix.free_mib[cells] - allocation_on_one_card(need).mib
        capacity = np.maximum(matrix.capacity_mib[cells], 1)
        heat, avoided = matrix.heat[cells], matrix.avoided[cells]
        score = SCORING[strategy].score(left / capacity, heat)
        found: NDArray[np.float64] = coolest_first(score, avoided=avoided, heat=heat) - avoided
        if strategy is Strategy.LEAST_WASTE:
            cost = self._least_waste.card_costs(need, pod.host, rows, columns)
            if cost is not None and not np.isnan(cost).all():
                return np.where(np.isnan(cost), np.nanmin(-cost) - 2.0 + found, -cost)
        return found

    def fitting(self, need: PodNeed, snapshot: Snapshot) -> Cells:
        """Return the cards on each of which the whole pod would fit."""
        matrix = self.matrix(snapshot)
        found = self._found.get(need)
        if found is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            self.evaluated += 1
            found = self._found[need] = cards_for_pod(matrix, need)
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
