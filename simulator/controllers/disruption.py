"""Keeps the status of disruption budgets: how many pods may be evicted now.

Source: k8s.io/kubernetes pkg/controller/disruption/disruption.go. The expected count is
the scale of the pods' controllers, the healthy count includes every matching pod: a replacement
that is Ready beside its predecessor allows one disruption more.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from fracgpu.k8s.selectors import label_selector
from kube.kinds import DEPLOYMENTS, PDBS, PODS, REPLICASETS
from kube.objects import ObjectKey
from simulator.controllers.controller import SharedInformers, WorkQueue, controller_of, key_of
from simulator.controllers.pods import is_ready, is_terminating
from simulator.objects import Json, format_time, labels

if TYPE_CHECKING:
    from kube.kinds import Kind

_DISRUPTED_FOR: Final = timedelta(minutes=2)  # then an eviction that deleted no pod is dropped
_SCALED: Final[dict[str, Kind]] = {kind.kind: kind for kind in (REPLICASETS, DEPLOYMENTS)}


class DisruptionController:
    """One queue of PodDisruptionBudgets."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "disruption"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(PDBS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(PODS, self._pod_changed)
        for kind in (REPLICASETS, DEPLOYMENTS):
            cluster.listen(kind, self._pod_changed)

    def _pod_changed(self, changed: Json) -> None:
        # Labels may have changed too, so every budget of the namespace is reconciled.
        for budget in self._cluster.known(PDBS, changed["metadata"]["namespace"]):
            self.queue.add(key_of(budget))

    async def reconcile(self, key: ObjectKey) -> None:
        budget = await self._cluster.fetch(PDBS, key)
        if budget is None:
            return
        selector = label_selector((budget.get("spec") or {}).get("selector"))
        pods = await self._cluster.pods(key.namespace)
        mine = [pod for pod in pods if selector is not None and selector.matches(labels(pod))]
        now = self._cluster.clock.now()
        disrupted = _still_disrupted(budget, mine, now)
        healthy = sum(
            is_ready(pod) and not is_terminating(pod) and pod["metadata"]["name"] not in disrupted
            for pod in mine
        )
        expected, desired = await self._expectation(budget, mine)
        allowed = max(0, healthy - desired) if expected > 0 else 0
        status: Json = {
            **{k: v for k, v in (budget.get("status") or {}).items() if k != "disruptedPods"},
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
            "expectedPods": expected,
            "observedGeneration": budget["metadata"]["generation"],
        }
        if disrupted:
            status["disruptedPods"] = disrupted
            self.queue.add_after(_DISRUPTED_FOR.total_seconds(), key)
        status["conditions"] = [_condition(status, now)]
        await self._cluster.write_status(PDBS, budget, status)

    async def _expectation(self, budget: Json, pods: list[Json]) -> tuple[int, int]:
        """Return the expected number of pods and how many of them must stay healthy."""
        spec = budget.get("spec") or {}
        if "maxUnavailable" in spec:
            expected = await self._scale_of(pods)
            return expected, max(0, expected - _part(spec["maxUnavailable"], expected))
        least = spec.get("minAvailable", 1)
        if isinstance(least, int):
            return len(pods), least
        expected = await self._scale_of(pods)
        return expected, _part(least, expected)

    async def _scale_of(self, pods: list[Json]) -> int:
        """Return the sum of the replicas of the controllers of *pods*."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = await self._top_owner(pod)
            if owner is not None:
                scales[owner["metadata"]["uid"]] = owner["spec"].get("replicas", 1)
        return sum(scales.values())

    async def _top_owner(self, pod: Json) -> Json | None:
        """Return the topmost controller, which sets the scale; None for a bare pod."""
        found: Json | None = None
        reference = controller_of(pod)
        while reference is not None and reference["kind"] in _SCALED:
            key = ObjectKey(pod["metadata"]["namespace"], reference["name"])
            owner = await self._cluster.fetch(_SCALED[reference["kind"]], key)
            if owner is None or owner["metadata"]["uid"] != reference["uid"]:
                break
            found, reference = owner, controller_of(owner)
        return found


def _still_disrupted(budget: Json, pods: list[Json], now: datetime) -> dict[str, str]:
    """Return the evictions whose pods still exist, are not terminating and have not timed out."""
    evicted: dict[str, str] = (budget.get("status") or {}).get("disruptedPods") or {}
    remaining = {pod["metadata"]["name"] for pod in pods if not is_terminating(pod)}
    return {
        name: moment
        for name, moment in evicted.items()
        if name in remaining and datetime.fromisoformat(moment) + _DISRUPTED_FOR > now
    }


def _part(amount: int | str, total: int) -> int:
    """Return 2, or "25%" of *total*, as a count; percentages round up, as in Kubernetes."""
    if isinstance(amount, int):
        return amount
    return math.ceil(int(amount.removesuffix("%")) * total / 100)


def _condition(status: Json, now: datetime) -> Json:
    allowed = status["disruptionsAllowed"] > 0
    state = "True" if allowed else "False"
    before: list[Json] = status.get("conditions") or []
    kept = next(
        (condition for condition in before if condition["type"] == "DisruptionAllowed"), None
    )
    if kept is not None and kept["status"] == state:
        return {**kept, "observedGeneration": status["observedGeneration"]}
    return {
        "type": "DisruptionAllowed",
        "status": state,
        "reason": "SufficientPods" if allowed else "InsufficientPods",
        "message": "",
        "observedGeneration": status["observedGeneration"],
        "lastTransitionTime": format_time(now),
    }
