"""The referee's experiment as kube-scheduler runs it: a ring of nodes, and a sample of them.

kube-scheduler (`pkg/scheduler/schedule_one.go`) looks for feasible nodes in a ring and stops when
it has enough; the extender filters and scores those. kube-scheduler sees the sum of a node's
cards; the extender sees each card. `Policy` looks at all nodes (``percentageOfNodesToScore: 100``,
as in our profile), `Sampled` at as many as kube-scheduler does by default (41 % of 1,213 nodes).

    PYTHONPATH=../shared/referee:. .venv/bin/python -m openb_bench.referee \
        benchmarks.referee_protocol:Policy benchmarks.referee_protocol:Sampled
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.fixtures.referee_harness import Cluster, Pod
from benchmarks.referee import Policy as EveryNode
from benchmarks.referee import fits_in_sum

# kube-scheduler 1.30 to 1.36: minFeasibleNodesToFind, minFeasibleNodesPercentageToFind.
_FEWEST_NODES: Final = 100
_LEAST_PERCENT: Final = 5


def nodes_wanted(nodes: int) -> int:
    """Return how many feasible nodes kube-scheduler looks for (numFeasibleNodesToFind)."""
    if nodes < _FEWEST_NODES:
        return nodes
    percent = max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * percent // 100, _FEWEST_NODES)


class Policy(EveryNode):
    """kube-scheduler with our extender, looking at every node."""

    _next = 0  # index of the node at which the next search starts

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        info = self.harness.read(pod)
        fits = fits_in_sum(pod, cluster)
        ring = (np.arange(cluster.n) + self._next) % cluster.n
        feasible = ring[fits[ring]]
        # A pod that fits on no node of one sample is retried from where that sample ended.
        for start in range(0, len(feasible), self.sample(cluster.n)):
            nodes = feasible[start : start + self.sample(cluster.n)]
            self._next = int(nodes[-1] + 1) % cluster.n
            # Deterministic: only one node has the extender's highest score, whatever the order.
            node = self.harness.best_node(info, np.sort(nodes))
            if node is not None:
                return node, self.harness.cards_on(info, node)
        return None

    def sample(self, nodes: int) -> int:
        return nodes


class Sampled(Policy):
    """kube-scheduler with our extender, looking at as many nodes as it does by default."""

    def sample(self, nodes: int) -> int:
        return nodes_wanted(nodes)
