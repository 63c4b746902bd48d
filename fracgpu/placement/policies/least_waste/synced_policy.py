"""The policy ``least-waste``, kept in step with the cluster's nodes and bound pods."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import NO_HOST_RESOURCES
from fracgpu.placement.fit import SHARES, USABLE
from fracgpu.placement.node_matrix import (
    MAX_CARDS,
    WHOLE_CARD_MILLI,
    Columns,
    Demand,
    FreeResources,
    IntArray,
    NodeMatrix,
)
from fracgpu.placement.policies.least_waste.card_states import Allowance
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.ranking import Ranking
from fracgpu.state.bound_pod_index import BoundPodIndex

_MAX_COSTS: Final = 64
_MAX_RANKINGS: Final = 8  # of filter; bind follows soon, and asks for the cards on one node of it
_UNBOUNDED_MILLI: Final = 10**9


class SyncedPolicy:
    """One policy, kept in step with the node matrix and the bound pods.

    Attributes:
        policy: the policy; its mix may not change.
        row: [matrix row] the policy's row of the node; -1 if the policy does not know it.
        size_mib: [matrix row] the capacity of the node's largest card in MiB.
    """

    def __init__(self, policy: LeastWaste, matrix: NodeMatrix, bound_pods: BoundPodIndex) -> None:
        self.policy = policy
        self._matrix = matrix
        self._bound_pods = bound_pods
        self._seen = -1
        self._host_seen = -1
        self._behind: set[int] = set()
        self._names: dict[int, str] = {}
        self.row = np.full(1, -1, np.int64)
        self.size_mib = np.zeros(1, np.int64)
        self._matrix_row = np.zeros(1, np.int64)  # of each row of the policy
        self._nowhere: NDArray[np.float64] | None = None  # costs where no pod fits, [matrix row]
        self._rows_of_size: dict[int | None, IntArray] = {}
        self._costs: dict[tuple[Demand, int], NDArray[np.float64]] = {}
        self._rankings: dict[Demand, Ranking] = {}

    def columns_of(self, closed: Mapping[CardUuid, str]) -> Mapping[int, Columns]:
        """Return the columns of cards that are otherwise usable, by the policy's row."""
        found: dict[int, set[int]] = {}
        for card, node in closed.items():
            row = self._matrix.rows.get(node)
            uuids = () if row is None else self._matrix.uuids(row)[:MAX_CARDS]
            if row is not None and self.row[row] >= 0 and card in uuids:
                column = uuids.index(card)
                if self._matrix.state[row, column] == USABLE:
                    found.setdefault(int(self.row[row]), set()).add(column)
        return {row: frozenset(columns) for row, columns in found.items()}

    def costs(
        self, demand: Demand, size_mib: int, closed: Mapping[int, Columns], allowance: Allowance
    ) -> NDArray[np.float64]:
        """Return the cost of a pod on each matrix row, for nodes with cards of one size.

        NaN where it is not known, or not yet, and infinity where the pod does not fit.

        Args:
            demand: what the pod requests of such nodes.
            size_mib: the size; a pod that requests no cards may be on nodes with cards of any size.
            closed: columns of cards that the pod does not get, by the policy's row.
            allowance: how many states may be evaluated.
        """
        among = self._among(size_mib if demand.cards else None)
        found = self._costs_of((demand, size_mib), among, allowance)
        if not closed:
            return found
        found = found.copy()
        those = np.intersect1d(among, np.array(sorted(closed), np.int64))
        ranking = self.policy.rank(demand, among=those, closed=closed, allowance=allowance)
        found[np.isin(self.row, those)] = np.inf
        found[self._matrix_row[ranking.rows]] = ranking.cost_milli
        return found

    def _among(self, size_mib: int | None) -> IntArray:
        """Return the policy's rows of nodes with cards of one size, ascending; None for any."""
        found = self._rows_of_size.get(size_mib)
        if found is None:
            those = self.row >= 0
            if size_mib is not None:
                those &= self.size_mib == size_mib
            found = self._rows_of_size[size_mib] = np.sort(self.row[those])
        return found

    def _costs_of(
        self, key: tuple[Demand, int], among: IntArray, allowance: Allowance
    ) -> NDArray[np.float64]:
        found = self._costs.get(key)
        if found is None:
            ranking = self.policy.rank(key[0], among=among, allowance=allowance)
            self._remember(key[0], ranking)
            if self._nowhere is None:
                self._nowhere = np.where(self.row < 0, np.nan, np.inf)
            found = self._nowhere.copy()
            found[self._matrix_row[ranking.rows]] = ranking.cost_milli
            if ranking.complete or not np.isnan(ranking.cost_milli).any():
                if len(self._costs) >= _MAX_COSTS:
                    del self._costs[next(iter(self._costs))]  # the oldest
                self._costs[key] = found
        return found

    def _remember(self, demand: Demand, ranking: Ranking) -> None:
        self._rankings.pop(demand, None)
        self._rankings[demand] = ranking
        if len(self._rankings) > _MAX_RANKINGS:
            del self._rankings[next(iter(self._rankings))]  # the oldest

    def cards_on(
        self, demand: Demand, row: int, closed: Mapping[int, Columns], allowance: Allowance
    ) -> tuple[int, ...] | None:
        """Return the cards that a pod should take of one node, by index; None if it does not fit.

        Args:
            demand: what the pod requests.
            row: the policy's row of the node.
            closed: as for `costs`.
            allowance: how many states may be evaluated.
        """
        ranking = None if closed else self._rankings.get(demand)
        # Ranking the node alone would give the same as long as nothing changes there.
        position = None if ranking is None else self.policy.position(ranking, row)
        if ranking is None or position is None:
            ranking = self.policy.rank(
                demand, among=np.array([row]), closed=closed, allowance=allowance
            )
            position = 0
        if not len(ranking.rows):
            return None
        return self.policy.cards(ranking, position, demand, closed)

    def keep_up(self, most: int | None = None) -> bool:
        """Pass nodes that changed on to the policy, *most* at a time; report whether all are."""
        matrix, bound_pods = self._matrix, self._bound_pods
        if self._seen == matrix.now and self._host_seen == bound_pods.now and not self._behind:
            return True
        changed = matrix.changed_since(self._seen).tolist()
        touched = bound_pods.changed_since(self._host_seen)
        self._seen, self._host_seen = matrix.now, bound_pods.now
        if changed or touched:
            self._costs.clear()
        if len(self.row) < len(matrix.changed):
            more = np.full(len(matrix.changed) - len(self.row), -1, np.int64)
            self.row = np.concatenate((self.row, more))
            self.size_mib = np.concatenate((self.size_mib, np.zeros_like(more)))
            self._forget_rows()
        self._behind.update(changed)
        self._behind.update(matrix.rows[name] for name in touched if name in matrix.rows)
        for row in sorted(self._behind)[:most]:
            self._behind.remove(row)
            self._sync(row)
        return not self._behind

    def _sync(self, row: int) -> None:
        name, free = self._matrix.names[row], self._free(row)
        if free is not None and free.model not in self.policy.models:
            free = None  # until the mix is learnt anew: a model changes all that is known
        before = self._names.pop(row, None)
        if before is not None and (before != name or free is None):
            if self._matrix_row[self.row[row]] == row:  # else it is in another row by now
                self.policy.drop(before)
            self.row[row] = -1
            self._forget_rows()
        if free is not None:
            self.policy.put(name, free)
            self._names[row] = name
            own, cards = self.policy.rows[name], len(free.card_milli)
            size_mib = max(self._matrix.capacity_mib[row, :cards].tolist())
            if self.row[row] != own or self.size_mib[row] != size_mib:
                self._forget_rows()
            self.row[row], self.size_mib[row] = own, size_mib
            if own >= len(self._matrix_row):
                more = np.zeros(own + 1, np.int64)
                self._matrix_row = np.concatenate((self._matrix_row, more))
            self._matrix_row[own] = row

    def _forget_rows(self) -> None:
        """Forget what is known of which rows the policy has, and of the sizes of their cards."""
        self._rows_of_size.clear()
        self._nowhere = None

    def _free(self, row: int) -> FreeResources | None:
        matrix = self._matrix
        node_info = matrix.infos[row]
        if node_info is None or matrix.node_state[row] != SHARES:
            return None
        width = min(len(node_info.cards), MAX_CARDS)
        state, avoided = matrix.state[row, :width].tolist(), matrix.avoided[row, :width].tolist()
        free, capacity = matrix.free_mib[row].tolist(), matrix.capacity_mib[row].tolist()
        allocatable, used = node_info.node.host, self._bound_pods.used(node_info.node.node)
        bounded = allocatable != NO_HOST_RESOURCES
        return FreeResources(
            model=matrix.models[matrix.model[row, 0]],
            cpu_milli=allocatable.cpu_milli - used.cpu_milli if bounded else _UNBOUNDED_MILLI,
            memory_mib=allocatable.memory_mib - used.memory_mib if bounded else _UNBOUNDED_MILLI,
            card_milli=tuple(
                [
                    max(0, free[at] * WHOLE_CARD_MILLI // max(1, capacity[at]))
                    if state[at] == USABLE and not avoided[at]
                    else 0
                    for at in range(width)
                ]
            ),
        )
