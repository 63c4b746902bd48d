"""Answers filter with the best node alone, where kube-scheduler would take it anyway.

kube-scheduler asks prioritize, and runs its own scoring, only if more than one node passes. The
best node leads by three points of prioritize, 600 of kube-scheduler's, which its default spreading
and the soft affinity of other pods, at most 200 each, do not make up for. What a pod prefers by
itself, and taints that ask for pods to run elsewhere, stay kube-scheduler's to weigh: then every
node is named.

Source: pkg/scheduler schedule_one.go (schedulePod, findNodesThatPassExtenders), 1.36. Nodes that an
answer leaves out count as hopeless for preemption (``NodeToStatus``), which kube-scheduler tries
only if no node passes; then nothing is left out. docs/decisions/0047.
"""

from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.extender.filter import Extender


class NarrowFilter:
    """Leaves out of an answer to filter what prioritize would not choose."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender

    def narrow(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        """Return the answer with the best node alone, or *result* where others matter too."""
        pod = args.pod
        if result.error or len(result.passed) <= 1 or pod.has_preferences:
            return result
        best = self._extender.best(pod, result.passed)
        return result if best is None else FilterResult(passed=(best,))
