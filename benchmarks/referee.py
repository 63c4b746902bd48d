"""A policy of the placement referee that calls the extender: filter, scores, choice of cards.

From the project root, with the referee's folder beside it:

    PYTHONPATH=../shared/referee:. .venv/bin/python -m openb_bench.referee benchmarks.referee:Policy

It only converts.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.fixtures.referee_harness import Cluster, Pod, RefereeHarness


class Policy:
    """Every node that has the CPU, the memory and the sum of cards is offered to the extender.

    Pods without cards go where ``least-waste`` loses least: the referee lets a policy place them.
    """

    harness: RefereeHarness

    def start(self, cluster: Cluster, history: Iterable[Pod], rng: np.random.Generator) -> None:
        """Learn the workload mix from the pods of the past."""
        del rng  # the extender uses no random numbers
        self.harness = RefereeHarness(cluster)
        self.harness.remember(history)

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        info = self.harness.read(pod)
        node = self.harness.best_node(info, np.flatnonzero(fits_in_sum(pod, cluster)))
        return None if node is None else (node, self.harness.cards_on(info, node))

    def bound(self, pod: Pod, node: int, cards: Sequence[int]) -> None:
        """Learn from a pod that was bound; the referee's other worlds tell of these."""
        self.harness.bound(pod, node, cards)

    def refused(self, pod: Pod) -> None:
        """Learn from a pod that found no place."""
        self.harness.refused(pod)


class DefaultCpu(Policy):
    """Pods without cards go where most CPU is left, as kube-scheduler does by default."""

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        if pod.cards:
            return super().place(pod, cluster)
        nodes = np.flatnonzero(fits_in_sum(pod, cluster))
        return (int(nodes[cluster.cpu_free[nodes].argmax()]), ()) if len(nodes) else None


class Shortlists(DefaultCpu):
    """kube-scheduler takes one of the few nodes of a claim's shortlist: that with most CPU left."""

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        if not pod.cards:
            return super().place(pod, cluster)
        info = self.harness.read(pod)
        nodes = self.harness.shortlist(info)
        if not nodes:
            return None
        left = ((cluster.cpu_free - pod.cpu) / cluster.cpu_cap)[nodes] + (
            (cluster.mem_free - pod.mem) / cluster.mem_cap
        )[nodes]
        node = nodes[int(left.argmax())]
        return node, self.harness.cards_on(info, node)


def fits_in_sum(pod: Pod, cluster: Cluster) -> NDArray[np.bool_]:
    """Return which nodes pass kube-scheduler's own filters, which see only the sum of cards."""
    fits: NDArray[np.bool_] = (
        (cluster.cpu_free >= pod.cpu)
        & (cluster.mem_free >= pod.mem)
        & (cluster.gpu_free >= pod.cards * pod.milli)
    )
    return fits
