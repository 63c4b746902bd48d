"""Pods as their controllers see them: active, ready, made from a template, ranked for deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s.pod import has_ended
from kube.errors import NotFound
from kube.kinds import PODS
from simulator.controllers.controller import owner_reference

if TYPE_CHECKING:
    from kube.client import KubeClient
    from kube.kinds import Kind
    from simulator.objects import Json

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


def phase(pod: Json) -> str:
    """Return the pod's phase; Pending where none is set."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminating(pod: Json) -> bool:
    """Report whether the pod is marked for deletion."""
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: Json) -> bool:
    """Report whether the pod counts for its owner: neither finished nor terminating."""
    return not has_ended(phase(pod)) and not is_terminating(pod)


def is_ready(pod: Json) -> bool:
    """Report whether the pod's Ready condition is true."""
    return _ready_condition(pod).get("status") == "True"


def _ready_condition(pod: Json) -> Json:
    conditions: list[Json] = (pod.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == "Ready"), {})


def from_template(template: Json, *, kind: Kind, owner: Json) -> Json:
    """Return a pod of *template*, controlled by *owner*; it has no name yet."""
    meta = template.get("metadata") or {}
    copied = {k: dict(meta[k]) for k in ("labels", "annotations") if meta.get(k)}
    return {
        "metadata": {**copied, "ownerReferences": [owner_reference(kind, owner)]},
        "spec": template["spec"],
    }


def deletion_rank(pod: Json) -> tuple[Any, ...]:
    """Return the sort key by which the pod to delete first comes first.

    Source: k8s.io/kubernetes pkg/controller ActivePodsWithRanks: unassigned, then Pending, not
    ready, cheap by the deletion-cost annotation, ready for the shortest time, created last.
    """
    annotations = pod["metadata"].get("annotations") or {}
    try:
        cost = int(annotations.get(_DELETION_COST, "0"))
    except ValueError:
        cost = 0
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(phase(pod), 1),
        is_ready(pod),
        cost,
        _newest_first(_ready_condition(pod).get("lastTransitionTime") if is_ready(pod) else ""),
        _newest_first(pod["metadata"].get("creationTimestamp")),
        pod["metadata"]["name"],
    )


def _newest_first(moment: str | None) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in moment or "")


async def delete_pod(client: KubeClient, pod: Json) -> None:
    """Delete the pod; one that is already gone is no error."""
    meta = pod["metadata"]
    try:
        await client.delete(PODS, meta["name"], namespace=meta["namespace"], uid=meta["uid"])
    except NotFound:
        return
