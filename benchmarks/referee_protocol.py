"""The referee's experiment with the policy behind kube-scheduler's extender protocol.

kube-scheduler (`pkg/scheduler/schedule_one.go`) looks for feasible nodes in a ring, stops when it
has enough, lets the extender filter and score those from 0 to 10, and draws at random among the
highest. What it sees of cards is a sum over the node; the extender sees each. `Policy` looks at all
nodes (``percentageOfNodesToScore: 100``, as in our profile), `Sampled` at as many as kube-scheduler
does by default (42 % of 1,000 nodes).

    PYTHONPATH=../shared/referee:. .venv/bin/python -m openb_bench.referee \
        benchmarks.referee_protocol:Policy benchmarks.referee_protocol:Sampled
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.referee import Cluster, Pod, want_of
from benchmarks.referee import Policy as InProcess
from fracgpu.policies.priorities import priorities
from fracgpu.policies.workload_mix import Want

# kube-scheduler 1.30 to 1.36: minFeasibleNodesToFind, minFeasibleNodesPercentageToFind.
_FEWEST_NODES: Final = 100
_LEAST_PERCENT: Final = 5


def nodes_wanted(nodes: int) -> int:
    """How many feasible nodes kube-scheduler looks for by default (numFeasibleNodesToFind)."""
    if nodes < _FEWEST_NODES:
        return nodes
    percent = max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * percent // 100, _FEWEST_NODES)


class Policy:
    """kube-scheduler with our extender, looking at every node."""

    def __init__(self) -> None:
        self._inner = InProcess()
        self._draw = np.random.default_rng(0)
        self._next = 0

    def start(self, cluster: Cluster, history: Iterable[Pod], rng: np.random.Generator) -> None:
        self._inner.start(cluster, history, rng)
        self._draw = rng

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        want = want_of(pod)
        fits = self._fits_in_sum(want, cluster)
        ring = (np.arange(cluster.n) + self._next) % cluster.n
        feasible = ring[fits[ring]]
        # A pod that none of one sample takes is tried again, from where that sample ended.
        for start in range(0, len(feasible), self.sample(cluster.n)):
            nodes = feasible[start : start + self.sample(cluster.n)]
            self._next = int(nodes[-1] + 1) % cluster.n
            chosen = self._cycle(want, cluster, np.sort(nodes))
            if chosen is not None:
                return chosen
        return None

    def sample(self, nodes: int) -> int:
        return nodes

    def _cycle(
        self, want: Want, cluster: Cluster, nodes: NDArray[np.int64]
    ) -> tuple[int, Sequence[int]] | None:
        ranking = self._inner.rank(want, cluster, among=nodes)  # filter and prioritize
        if not len(ranking.rows):
            return None
        marks = priorities(ranking.cost_milli)
        node = int(self._draw.choice(ranking.rows[marks == marks.max()]))
        bound = self._inner.rank(want, cluster, among=np.array([node]))  # bind asks for cards only
        return node, self._inner.cards(bound, 0, want)

    @staticmethod
    def _fits_in_sum(want: Want, cluster: Cluster) -> NDArray[np.bool_]:
        fits: NDArray[np.bool_] = (
            (cluster.cpu_free >= want.cpu_milli)
            & (cluster.mem_free >= want.memory_mib)
            & (cluster.card_free.sum(1) >= want.gpu_milli)
        )
        if want.cards and want.models is not None:
            accepted = np.array([name in want.models for name in cluster.model_names])
            fits &= accepted[cluster.model]
        return fits


class Sampled(Policy):
    """kube-scheduler with our extender, looking at as many nodes as it does by default."""

    def sample(self, nodes: int) -> int:
        return nodes_wanted(nodes)
