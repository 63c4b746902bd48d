"""Lets the placement referee ask the product's least-waste policy.

From the project root, with the referee's folder beside it:

    PYTHONPATH=../shared/referee:. .venv/bin/python -m openb_bench.referee benchmarks.referee:Policy

It converts and nothing else: the policy is `fracgpu.policies.least_waste`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fracgpu.policies.least_waste import LeastWaste, Ranking
from fracgpu.policies.node_table import NodeFree
from fracgpu.policies.workload_mix import Want, WorkloadMix


class Pod(Protocol):
    """The referee's pod: CPU in thousandths, memory in MiB, thousandths of each card."""

    @property
    def cpu(self) -> int: ...
    @property
    def mem(self) -> int: ...
    @property
    def cards(self) -> int: ...
    @property
    def milli(self) -> int: ...
    @property
    def models(self) -> frozenset[str] | None: ...


class Cluster(Protocol):
    """The referee's cluster: arrays over nodes, and a log of nodes that changed."""

    n: int
    model: NDArray[np.int64]
    model_names: list[str]
    cards: NDArray[np.int64]
    cpu_free: NDArray[np.int64]
    mem_free: NDArray[np.int64]
    card_free: NDArray[np.int64]
    touched: list[int]


def want_of(pod: Pod) -> Want:
    """Read the referee's pod."""
    return Want(
        cpu_milli=pod.cpu,
        memory_mib=pod.mem,
        cards=pod.cards,
        share_milli=pod.milli if pod.cards else 0,
        models=pod.models,
    )


class Policy:
    """The policy as the referee drives it: in process, over all nodes."""

    def __init__(self) -> None:
        self._policy = LeastWaste()
        self._read = 0

    def start(self, cluster: Cluster, history: Iterable[Pod], rng: object) -> None:
        """Learn the mix from the pods of the past."""
        del rng  # the policy rolls no dice
        mix = WorkloadMix.fold(want_of(pod) for pod in history)
        self._policy = LeastWaste(mix.classes(), cluster.model_names)
        self._read = len(cluster.touched)
        self._tell(cluster, range(cluster.n))

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        want = want_of(pod)
        ranking = self.rank(want, cluster)
        best = ranking.best
        return None if best is None else (int(ranking.rows[best]), self.cards(ranking, best, want))

    def rank(
        self, want: Want, cluster: Cluster, *, among: NDArray[np.int64] | None = None
    ) -> Ranking:
        self._tell(cluster, sorted(set(cluster.touched[self._read :])))
        self._read = len(cluster.touched)
        return self._policy.rank(want, among=among)

    def cards(self, ranking: Ranking, position: int, want: Want) -> tuple[int, ...]:
        return self._policy.cards(ranking, position, want)

    def _tell(self, cluster: Cluster, nodes: Iterable[int]) -> None:
        for node in nodes:
            free = NodeFree(
                model=cluster.model_names[cluster.model[node]],
                cpu_milli=int(cluster.cpu_free[node]),
                memory_mib=int(cluster.mem_free[node]),
                card_milli=tuple(cluster.card_free[node, : cluster.cards[node]].tolist()),
            )
            self._policy.put(str(node), free)  # told in order, so the row is the node's number
