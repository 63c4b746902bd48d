"""Answers filter with the best node alone, unless the pod itself prefers some nodes.

kube-scheduler asks prioritize, and runs its own scoring, only if more than one node passes. For a
pod that states no preference, scoring would weigh only what nobody asked for: its default
spreading, and free CPU and memory. What a pod prefers by itself is kube-scheduler's to weigh: then
every node is named.

Source: pkg/scheduler schedule_one.go (schedulePod, findNodesThatPassExtenders), 1.36. Nodes that an
answer leaves out count as hopeless for preemption (``NodeToStatus``), which kube-scheduler tries
only if no node passes; then nothing is left out. docs/decisions/0047.
"""

from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.extender.filter import Extender


class NarrowFilter:
    """Leaves every node but the best out of an answer to filter."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender

    def narrow(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        """Return the answer with the best node alone, or *result* if the pod has preferences."""
        pod = args.pod
        if result.error or len(result.passed) <= 1 or pod.has_preferences:
            return result
        best = self._extender.best(pod, result.passed)
        return result if best is None else FilterResult(passed=(best,))
