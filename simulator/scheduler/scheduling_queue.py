"""The scheduling queue: which pending pod is tried next, and when one that failed is retried.

The rules are those of kube-scheduler 1.36: by priority, then by age; an unschedulable pod waits for
any event of pods or nodes and is then tried at once if no other pod waits; after an error it backs
off, doubling; no pod waits longer than five minutes.
Source: k8s.io/kubernetes pkg/scheduler/backend/queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 10.0
_FLUSH_S: Final = 300.0


@dataclass(slots=True, kw_only=True)
class _Pending:
    uid: str
    priority: int
    arrival: int
    failures: int = 0
    due_s: float = 0.0
    waits_for_event_after: int | None = None


class SchedulingQueue:
    """Pending pods by UID. Callers pass in the time and every event."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pending] = {}
        self._arrivals = 0
        self._events = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, *, priority: int) -> None:
        """Add a pod; one that is already in the queue keeps its place."""
        if uid not in self._pods:
            self._arrivals += 1
            self._pods[uid] = _Pending(uid=uid, priority=priority, arrival=self._arrivals)

    def remove(self, uid: str) -> None:
        """Remove a pod: it is bound, or gone."""
        self._pods.pop(uid, None)

    def event(self) -> None:
        """Count a change of a pod or a node."""
        self._events += 1

    @property
    def event_count(self) -> int:
        """The number of events so far; read it before reading the cluster's state."""
        return self._events

    def refused(self, uid: str, *, now_s: float, as_of: int) -> None:
        """Note that no node fitted, as of event number *as_of*."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.failures += 1
            pod.waits_for_event_after = as_of
            pod.due_s = now_s + _FLUSH_S

    def erred(self, uid: str, *, now_s: float) -> None:
        """Note that the attempt failed with an error: the pod is retried after a backoff."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.failures += 1
            pod.waits_for_event_after = None
            backoff_s = _FIRST_BACKOFF_S * 2.0 ** min(pod.failures - 1, 10)
            pod.due_s = now_s + min(backoff_s, _LONGEST_BACKOFF_S)

    def next(self, *, now_s: float) -> str | None:
        """Return the pod to try now, if any; those that never failed come first among equals."""
        due = [pod for pod in self._pods.values() if self._is_due(pod, now_s)]
        if not due:
            return None
        best = min(
            due, key=lambda pod: (-pod.priority, pod.failures > 0, pod.failures, pod.arrival)
        )
        return best.uid

    def wait_s(self, *, now_s: float) -> float:
        """Return the seconds until a pod is due without any event; infinite if none will be."""
        return min((pod.due_s - now_s for pod in self._pods.values()), default=float("inf"))

    def _is_due(self, pod: _Pending, now_s: float) -> bool:
        event_since = (
            pod.waits_for_event_after is not None and self._events > pod.waits_for_event_after
        )
        return event_since or now_s >= pod.due_s
