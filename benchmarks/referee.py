"""A policy of the placement referee that calls the extender: filter, scores, choice of cards.

From the project root, with the referee's folder beside it:

    PYTHONPATH=../shared/referee:. .venv/bin/python -m openb_bench.referee benchmarks.referee:Policy

It only converts. ``make bench BENCH=allocation`` runs it over all traces.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.fixtures.referee_world import Cluster, Pod, RefereeWorld


class Policy:
    """Every node that has the CPU, the memory and the sum of cards is offered to the extender.

    Pods without cards go where ``least-waste`` loses least: the referee lets a policy place them.
    """

    world: RefereeWorld

    def start(self, cluster: Cluster, history: Iterable[Pod], rng: np.random.Generator) -> None:
        """Learn the workload mix from the pods of the past."""
        del rng  # the extender uses no random numbers
        self.world = RefereeWorld(cluster)
        self.world.remember(history)

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        info = self.world.read(pod)
        node = self.world.best_node(info, np.flatnonzero(fits_in_sum(pod, cluster)))
        return None if node is None else (node, self.world.cards_on(info, node))


class DefaultCpu(Policy):
    """Pods without cards go where most CPU is left, as kube-scheduler does by default."""

    def place(self, pod: Pod, cluster: Cluster) -> tuple[int, Sequence[int]] | None:
        if pod.cards:
            return super().place(pod, cluster)
        nodes = np.flatnonzero(fits_in_sum(pod, cluster))
        return (int(nodes[cluster.cpu_free[nodes].argmax()]), ()) if len(nodes) else None


def fits_in_sum(pod: Pod, cluster: Cluster) -> NDArray[np.bool_]:
    """Return which nodes pass kube-scheduler's own filters, which see only the sum of cards."""
    fits: NDArray[np.bool_] = (
        (cluster.cpu_free >= pod.cpu)
        & (cluster.mem_free >= pod.mem)
        & (cluster.card_free.sum(1) >= pod.cards * pod.milli)
    )
    return fits
