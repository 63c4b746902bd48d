"""Where the replacement of a pod could run: the scheduler's own rules, asked before a pod is moved.

A card is a target if kube-scheduler's filters would take the pod on its node and the scheduler
extender on the card. Because a move reserves its target, every such card will do, not only the one
that the scheduler would choose by itself. None is on a node that an autoscaler is about to remove,
which a move would keep from going, or which would take the pod's replacement with it.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import hash_label_of, mode_of, released_value
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.k8s.scheduling.cluster import Change, Flags
from fracgpu.k8s.scheduling.node_filters import NodeFilter, allowed_nodes, refusals
from fracgpu.k8s.scheduling.objects import ScheduledPod, shared_labels
from fracgpu.placement.fit import keep_limit
from fracgpu.placement.node_matrix import UNSEEN, NodeMatrix
from fracgpu.placement.snapshot_index import Cells
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MoveMode


@dataclass(frozen=True, slots=True)
class Target:
    """A card that would take the replacement, and its node."""

    node: str
    card: CardUuid


class Targets:
    """Targets by node and card index, each made when it is read: there may be thousands.

    Attributes:
        rows: [target] the row of its node in *matrix*.
        columns: [target] the column of the card.
        refused: some card has room that is not excluded, and kube-scheduler's filters refuse its
            node.
    """

    def __init__(self, matrix: NodeMatrix, cells: Cells, *, refused: bool = False) -> None:
        self._matrix = matrix
        self.refused = refused
        self.rows: NDArray[np.int64]
        self.columns: NDArray[np.int64]
        self.rows, self.columns = np.nonzero(cells)

    def only(self, those: NDArray[np.bool_]) -> "Targets":
        """Return some of the targets: [target] a flag for each."""
        found = copy(self)
        found.rows, found.columns = self.rows[those], self.columns[those]
        return found

    def on(self, node: str) -> NDArray[np.bool_]:
        """Return for each target whether it is on a node."""
        found: NDArray[np.bool_] = self.rows == self._matrix.rows.get(node, -1)
        return found

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Target:
        row = int(self.rows[at])
        cards = self._matrix.uuids(row)
        return Target(self._matrix.names[row], cards[int(self.columns[at])])

    def __iter__(self) -> Iterator[Target]:
        return (self[number] for number in range(len(self)))


class PlacementSimulation:
    """Answers where replacements could run, for all pods of one disruption state.

    What is computed for one pod is kept, in the state, for those with the same constraints and
    request. One simulation serves all pods of a state; another one costs as much as a pod.

    Attributes:
        state: the cluster; moves under way count with what their replacements take.
    """

    def __init__(self, state: DisruptionState) -> None:
        self.state = state
        self._cluster = state.scheduling
        self._matrix = state.index.matrix(state.snapshot)
        self._expected = tuple(self._replacements())
        self._nodes: NDArray[np.int64] | None = None
        self._leaving = frozenset(
            name for name, info in state.snapshot.nodes.items() if info.node.leaving
        )

    def targets(
        self,
        candidate: PlacedPod,
        *,
        exclude: frozenset[CardUuid] = frozenset(),
        among: Cells | None = None,
    ) -> Targets:
        """Return every card that would take a replacement of a pod, other than its own.

        Args:
            candidate: the pod; it has a need, and one card.
            exclude: cards that are no targets. Pass the same set for many pods: it is looked up
                once.
            among: the cards that may be targets, by their place in the index; None for all.
        """
        need = candidate.info.need
        if need is None:
            return Targets(self._matrix, np.zeros((0, 0), np.bool_))
        state = self.state
        index, snapshot = state.index, state.snapshot
        cells = index.fitting(need, snapshot) & index.without(exclude, snapshot)
        if among is not None:
            cells &= among
        held = state.snapshot.pods.get(candidate.uid)
        places = index.places(snapshot)
        for card in held.by_card if held else ():
            if card in places:
                cells[places[card]] = False
        borrows = held is not None and held.borrows
        cells &= keep_limit(self._matrix.limits_mib[: len(cells)], borrows=borrows)
        leaving = [self._matrix.rows[name] for name in self._leaving]
        cells[leaving] = False
        rows = np.flatnonzero(cells.any(1))
        if not len(rows):
            return Targets(self._matrix, cells)
        allowed = self._on_rows(self._allowed_nodes(candidate))
        cells[rows] &= allowed[rows, np.newaxis]
        return Targets(self._matrix, cells, refused=not allowed[rows].all())

    def nodes_for(
        self,
        candidate: PlacedPod,
        nodes: Sequence[str],
        *,
        without: frozenset[NodeFilter] = frozenset(),
    ) -> Flags:
        """Return for each node, whatever its cards, whether it would take a pod.

        Args:
            candidate: the pod; one that waits for a node is placed as it is.
            nodes: by name.
            without: filters to leave out.
        """
        pod = candidate.scheduled
        changes = self._changes(pod, mode_of(candidate.info))
        allowed = allowed_nodes(self._cluster, pod, changes=changes, without=without)
        rows, leaving = self._cluster.rows, self._leaving
        return np.array(
            [name in rows and name not in leaving and allowed[rows[name]] for name in nodes],
            np.bool_,
        )

    def takes_beside(self, candidate: PlacedPod, node: str, joined: Sequence[PlacedPod]) -> bool:
        """Report whether a node would take a replacement beside the replacements of other pods."""
        pod = candidate.scheduled
        expected = [
            Change(replace(one.scheduled, uid=f"replacement of {one.uid}", node=node), 1)
            for one in joined
        ]
        changes = (*self._changes(pod, mode_of(candidate.info)), *expected)
        taken = allowed_nodes(self._cluster, pod, changes=changes)
        return bool(taken[self._cluster.rows[node]])

    def scheduler_choice(self, candidate: PlacedPod, targets: Targets) -> Target | None:
        """Return the target that the scheduler extender itself would choose; None without any.

        It is the best by the pod's strategy, or the cluster's; of equal ones the first node, and
        of that the tightest card.
        """
        if candidate.info.need is None or not targets:
            return None
        rows, columns = targets.rows, targets.columns
        preference = self.preference(candidate, rows, columns)
        free_mib = self._matrix.free_mib[rows, columns]
        return targets[int(np.lexsort((columns, free_mib, rows, -preference))[0])]

    def preference(
        self, candidate: PlacedPod, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return how gladly the extender would give a pod each of some cards; higher is better."""
        state = self.state
        return state.index.preference(
            candidate.info, rows, columns, strategy=state.strategy, snapshot=state.snapshot
        )

    def why_none(self, candidate: PlacedPod) -> str:
        """Return why nodes would refuse a replacement, the commonest reason first; may be empty."""
        pod = candidate.scheduled
        found = refusals(self._cluster, pod, changes=self._changes(pod, mode_of(candidate.info)))
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0].value))
        return ", ".join(
            f"{count} of {self._cluster.size} nodes: {rule.value}" for rule, count in ranked
        )

    def _allowed_nodes(self, candidate: PlacedPod) -> Flags:
        pod, mode = candidate.scheduled, mode_of(candidate.info)
        changes = self._changes(pod, mode)
        # Without changes the answer is that of every replica.
        own = (pod.uid, mode) if len(changes) > len(self._expected) else ()
        expected = tuple((change.pod.uid, change.pod.node) for change in self._expected)
        key = (pod.constraints, id(pod.labels), pod.namespace, own, expected)
        found = self._cluster.kept.get(key)
        if found is None:
            allowed = allowed_nodes(self._cluster, pod, changes=changes)
            found = self._cluster.kept[key] = (pod, allowed)  # the pod keeps its labels' id in use
        return found[1]

    def _changes(self, pod: ScheduledPod, mode: MoveMode) -> tuple[Change, ...]:
        """Return how the cluster differs when the replacement is scheduled.

        An evicted pod is gone. A released one stays, with another value of the label by which its
        ReplicaSet selected it.
        """
        if pod.node not in self._cluster.rows:
            return self._expected
        gone = Change(pod, -1)
        if mode is MoveMode.EVICT:
            return (*self._expected, gone)
        constraints = pod.constraints
        watched = constraints.spread or constraints.affinity or constraints.anti_affinity
        if not (watched or self._cluster.guards()):
            return self._expected
        key = hash_label_of(pod.labels)
        labels = {**pod.labels, key: released_value(pod.labels[key])}
        released = replace(pod, labels=shared_labels(labels))
        return (*self._expected, gone, Change(released, 1))

    def _replacements(self) -> Iterator[Change]:
        """Yield the replacements that are on their way, each on the node of its target."""
        state = self.state
        for past_move in state.under_way():
            move = past_move.spec
            if past_move.landed is not None or move.target.node not in self._cluster.rows:
                continue
            pod = state.pods.get(move.pod.uid) or next(iter(state.pods_of(move.owner.uid)), None)
            if pod is not None:
                uid = f"replacement of {move.pod.uid}"
                yield Change(replace(pod.scheduled, uid=uid, node=move.target.node), 1)

    def _on_rows(self, allowed: Flags) -> Flags:
        """Return flags of the scheduling cluster's nodes by row of the matrix."""
        if self._nodes is None:
            rows = self._cluster.rows
            self._nodes = np.array([rows.get(name, -1) for name in self._matrix.names], np.int64)
            self._nodes[UNSEEN] = -1
        found: Flags = np.append(allowed, False)[self._nodes]
        return found
