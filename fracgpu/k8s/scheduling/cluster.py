"""The nodes and the pods on them, by row: what the filters count, computed when it is asked for.

Every answer is an array with one entry for each node, and is kept: pods with equal terms, which
most replicas have, are counted once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules, NodeTerms, Toleration
from fracgpu.k8s.resources import PODS
from fracgpu.k8s.scheduling.constraints import HostPort
from fracgpu.k8s.scheduling.objects import ScheduledPod, SchedulingNode
from fracgpu.k8s.scheduling.terms import PodQuery, PodTerm
from fracgpu.k8s.scheduling.volumes import Storage

Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]

NO_VALUE = -1
"""Stands for a node without the label, in the array of a topology key."""


@dataclass(slots=True)
class _Group:
    """The pods with equal labels in one namespace, by the rows of their nodes."""

    labels: Mapping[str, str]
    rows: list[int] = field(default_factory=list)
    terminating: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """A pod that counts although it is not there (1), or does not although it is (-1)."""

    pod: ScheduledPod
    sign: int


Changes = Sequence[Change]


class SchedulingCluster:
    """Nodes, pods and volumes at one moment.

    Args:
        nodes: every node.
        pods: every pod that has a node and has not ended.
        namespaces: the labels of each namespace.
        storage: claims and volumes.

    Attributes:
        rows: the row of each node, by name.
        kept: answers that a caller keeps for pods with equal constraints, by a key of its own.
    """

    def __init__(
        self,
        nodes: Iterable[SchedulingNode],
        pods: Iterable[ScheduledPod],
        *,
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.rows = {node.name: row for row, node in enumerate(self.nodes)}
        self.namespaces = namespaces or {}
        self.storage = storage or Storage()
        self.kept: dict[tuple[object, ...], tuple[ScheduledPod, Flags]] = {}
        self._pods = tuple(pod for pod in pods if pod.node in self.rows)
        self._groups: dict[str, list[_Group]] | None = None
        self._free: dict[str, Rows] | None = None
        self._ports: dict[int, list[HostPort]] | None = None
        self._users: dict[tuple[str, str], list[ScheduledPod]] | None = None
        self._guards: dict[PodTerm, Rows] | None = None
        self._open: Flags | None = None
        self._values: dict[str, Rows] = {}
        self._counts: dict[tuple[tuple[PodQuery, ...], bool], Rows] = {}
        self._queries: dict[PodTerm, PodQuery] = {}
        self._selected: dict[NodeRules, Flags] = {}
        self._tolerated: dict[tuple[Toleration, ...], Flags] = {}
        self._holding: dict[NodeExpression, Flags] = {}

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    def all(self) -> Flags:
        """Return True for every node."""
        return np.ones(self.size, np.bool_)

    def values(self, topology_key: str) -> Rows:
        """Return a number for the value of a label on each node; NO_VALUE without the label."""
        found = self._values.get(topology_key)
        if found is None:
            numbers: dict[str, int] = {}
            texts = (node.labels.get(topology_key) for node in self.nodes)
            found = self._values[topology_key] = np.fromiter(
                (NO_VALUE if text is None else numbers.setdefault(text, len(numbers))
                 for text in texts),
                np.int64,
                self.size,
            )  # fmt: skip
        return found

    def query(self, term: PodTerm) -> PodQuery:
        """Return which pods a term counts."""
        found = self._queries.get(term)
        if found is None:
            found = self._queries[term] = term.query(self.namespaces)
        return found

    def counts(
        self, queries: tuple[PodQuery, ...], *, changes: Changes = (), terminating: bool
    ) -> Rows:
        """Return how many pods of each node match all of the queries.

        Args:
            queries: what a pod has to match; at least one.
            changes: pods to count, or not to count, in addition.
            terminating: whether pods that are being deleted count.
        """
        key = (queries, terminating)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = self._count(queries, terminating=terminating)
        moved = [
            change
            for change in changes
            if (terminating or not change.pod.terminating)
            and all(query.matches(change.pod.namespace, change.pod.labels) for query in queries)
        ]
        if moved:
            found = found.copy()
            for change in moved:
                found[self.rows[change.pod.node]] += change.sign
        return found

    def _count(self, queries: tuple[PodQuery, ...], *, terminating: bool) -> Rows:
        rows: list[int] = []
        groups = self._by_namespace()
        for namespace in groups if queries[0].namespaces is None else queries[0].namespaces:
            for group in groups.get(namespace, ()):
                if all(query.matches(namespace, group.labels) for query in queries):
                    rows += group.rows
                    rows += group.terminating if terminating else ()
        return np.bincount(np.array(rows, np.int64), minlength=self.size)

    def _by_namespace(self) -> Mapping[str, Sequence[_Group]]:
        if self._groups is None:
            found: dict[tuple[str, int], _Group] = {}
            for pod in self._pods:
                group = found.get((pod.namespace, id(pod.labels)))
                if group is None:
                    group = found[pod.namespace, id(pod.labels)] = _Group(pod.labels)
                (group.terminating if pod.terminating else group.rows).append(self.rows[pod.node])
            self._groups = {}
            for (namespace, _), group in found.items():
                self._groups.setdefault(namespace, []).append(group)
        return self._groups

    def free(self, resource: str) -> Rows:
        """Return what each node has left of a resource; `PODS` counts pods."""
        if self._free is None:
            self._free = self._left()
        found = self._free.get(resource)
        return np.zeros(self.size, np.int64) if found is None else found

    def _left(self) -> dict[str, Rows]:
        names = {resource for node in self.nodes for resource in node.allocatable} | {PODS}
        left = {name: [node.allocatable.get(name, 0) for node in self.nodes] for name in names}
        pods = left[PODS]
        for pod in self._pods:
            row = self.rows[pod.node]
            pods[row] -= 1
            for resource, amount in pod.constraints.requests:
                if resource in left:
                    left[resource][row] -= amount
        return {name: np.array(amounts, np.int64) for name, amounts in left.items()}

    def ports(self, row: int) -> Sequence[HostPort]:
        """Return the host ports that are taken on a node."""
        if self._ports is None:
            self._ports = {}
            for pod in self._pods:
                if pod.constraints.ports:
                    taken = self._ports.setdefault(self.rows[pod.node], [])
                    taken.extend(pod.constraints.ports)
        return self._ports.get(row, ())

    def rows_with_ports(self) -> Iterable[int]:
        """Return the nodes on which a host port is taken."""
        self.ports(NO_VALUE)
        return self._ports or ()

    def users(self, namespace: str, claim: str) -> Sequence[ScheduledPod]:
        """Return the pods that use a claim."""
        if self._users is None:
            self._users = {}
            for pod in self._pods:
                for name in pod.constraints.claims:
                    self._users.setdefault((pod.namespace, name), []).append(pod)
        return self._users.get((namespace, claim), ())

    def guards(self) -> Mapping[PodTerm, Rows]:
        """Return each required anti-affinity term of a pod: how many pods of each node have it."""
        if self._guards is None:
            found: dict[PodTerm, list[int]] = {}
            for pod in self._pods:
                for term in pod.constraints.anti_affinity:
                    found.setdefault(term, []).append(self.rows[pod.node])
            self._guards = {
                term: np.bincount(np.array(rows, np.int64), minlength=self.size)
                for term, rows in found.items()
            }
        return self._guards

    def schedulable(self) -> Flags:
        """Return which nodes are not cordoned."""
        if self._open is None:
            self._open = np.array([not node.unschedulable for node in self.nodes], np.bool_)
        return self._open

    def selected(self, rules: NodeRules) -> Flags:
        """Return which nodes selector and node affinity of a pod allow."""
        found = self._selected.get(rules)
        if found is None:
            found = self.all()
            for wanted in rules.selector:
                found &= self._holds(wanted)
            if rules.terms is not None:
                found &= self.any_term(rules.terms)
            self._selected[rules] = found
        return found

    def any_term(self, terms: NodeTerms) -> Flags:
        """Return which nodes match one of the terms of a node selector."""
        found = np.zeros(self.size, np.bool_)
        for term in terms:
            if term:
                matching = self.all()
                for wanted in term:
                    matching &= self._holds(wanted)
                found |= matching
        return found

    def _holds(self, wanted: NodeExpression) -> Flags:
        """Return which nodes an expression matches; each value of a label is compared once."""
        found = self._holding.get(wanted)
        if found is None:
            if wanted.by_field:
                each = [wanted.matches(node.labels, node=node.name) for node in self.nodes]
                found = np.array(each, np.bool_)
            else:
                numbers = self.values(wanted.key)
                by_number = np.zeros(int(numbers.max(initial=NO_VALUE)) + 2, np.bool_)
                for number, row in zip(*np.unique(numbers, return_index=True), strict=True):
                    by_number[number] = wanted.holds(self.nodes[row].labels.get(wanted.key))
                found = by_number[numbers]  # NO_VALUE is the last entry
            self._holding[wanted] = found
        return found

    def tolerated(self, rules: NodeRules) -> Flags:
        """Return which nodes have no taint that a pod does not tolerate."""
        found = self._tolerated.get(rules.tolerations)
        if found is None:
            answers: dict[tuple[Taint, ...], bool] = {}
            for node in self.nodes:
                if node.taints not in answers:
                    answers[node.taints] = rules.tolerates(node.taints)
            each = [answers[node.taints] for node in self.nodes]
            found = self._tolerated[rules.tolerations] = np.array(each, np.bool_)
        return found


def per_value(values: Rows, amounts: Rows) -> Rows:
    """Return, for each node, the sum of *amounts* over the nodes with the same value; 0 without."""
    known = values >= 0
    if not known.any():
        return np.zeros(len(values), np.int64)
    sums = np.bincount(values[known], weights=amounts[known])
    found: Rows = np.where(known, sums[values].astype(np.int64), 0)
    return found
