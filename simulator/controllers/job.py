"""Runs a Job's pods until enough of them succeeded or too many failed.

Source: k8s.io/kubernetes pkg/controller/job. Indexed completion, pod failure policies and the
tracking finalizer are left out: pods are counted as long as they exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube.kinds import JOBS, PODS
from simulator.controllers.controller import (
    SharedInformers,
    WorkQueue,
    enqueue_owner,
    is_owned_by,
    key_of,
)
from simulator.controllers.pods import (
    delete_pod,
    from_template,
    is_active,
    is_ready,
    is_terminating,
    phase,
)
from simulator.objects import Json, format_time

if TYPE_CHECKING:
    from kube.objects import ObjectKey


class JobController:
    """One queue of Jobs."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "job"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(JOBS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(PODS, enqueue_owner(self.queue, JOBS))

    async def reconcile(self, key: ObjectKey) -> None:
        owner = await self._cluster.fetch(JOBS, key)
        if owner is None or is_terminating(owner) or _is_finished(owner):
            return
        mine = [pod for pod in await self._cluster.pods(key.namespace) if is_owned_by(pod, owner)]
        active = [pod for pod in mine if is_active(pod)]
        succeeded = sum(phase(pod) == "Succeeded" for pod in mine)
        failed = sum(phase(pod) == "Failed" for pod in mine)
        end = _end(owner, succeeded=succeeded, failed=failed, active=len(active))
        wanted = 0 if end or owner["spec"]["suspend"] else _wanted(owner, succeeded)
        for pod in active[wanted:]:
            await delete_pod(self._cluster.client, pod)
        for _ in range(wanted - len(active)):
            await self._create(owner)
        now = format_time(self._cluster.clock.now())
        status: Json = {
            **(owner.get("status") or {}),
            "active": wanted,
            "ready": sum(map(is_ready, active[:wanted])),
            "succeeded": succeeded,
            "failed": failed,
        }
        status = {k: v for k, v in status.items() if v or k == "ready"}
        status.setdefault("startTime", now)
        status.setdefault("uncountedTerminatedPods", {})
        if end:
            status["conditions"] = [
                {
                    "type": kind,
                    "status": "True",
                    "reason": end[1],
                    "lastProbeTime": now,
                    "lastTransitionTime": now,
                }
                for kind in end[0]
            ]
            if "Complete" in end[0]:
                status["completionTime"] = now
        await self._cluster.write_status(JOBS, owner, status)

    async def _create(self, owner: Json) -> None:
        pod = from_template(owner["spec"]["template"], kind=JOBS, owner=owner)
        pod["metadata"]["generateName"] = f"{owner['metadata']['name']}-"
        await self._cluster.create_pod(JOBS, owner, pod)


def _is_finished(owner: Json) -> bool:
    conditions = (owner.get("status") or {}).get("conditions") or []
    return any(
        condition["type"] in {"Complete", "Failed"} and condition["status"] == "True"
        for condition in conditions
    )


def _wanted(owner: Json, succeeded: int) -> int:
    parallelism: int = owner["spec"]["parallelism"]
    completions = owner["spec"].get("completions")
    if completions is None:  # a work queue Job: the first success means that no work is left
        return 0 if succeeded else parallelism
    return max(0, min(parallelism, int(completions) - succeeded))


def _end(
    owner: Json, *, succeeded: int, failed: int, active: int
) -> tuple[tuple[str, ...], str] | None:
    """Return the conditions that end the Job, with their reason."""
    if failed > owner["spec"]["backoffLimit"]:
        return ("FailureTarget", "Failed"), "BackoffLimitExceeded"
    completions = owner["spec"].get("completions")
    done = succeeded >= completions if completions is not None else succeeded and not active
    return (("SuccessCriteriaMet", "Complete"), "CompletionsReached") if done else None
