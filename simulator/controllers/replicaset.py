"""Keeps a ReplicaSet's number of pods; adopts pods that match and releases those that do not.

Source: k8s.io/kubernetes pkg/controller/replicaset and controller_ref_manager.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from fracgpu.k8s.selectors import LabelSelector, label_selector
from kube.client import PatchType
from kube.errors import Forbidden, Invalid, KubeError, NotFound
from kube.kinds import PODS, REPLICASETS
from simulator.controllers.controller import (
    SharedInformers,
    WorkQueue,
    controller_of,
    enqueue_owner,
    is_owned_by,
    key_of,
    owner_reference,
)
from simulator.controllers.pods import (
    delete_pod,
    deletion_rank,
    from_template,
    is_active,
    is_ready,
    is_terminating,
)
from simulator.objects import Json, format_time, labels

if TYPE_CHECKING:
    from kube.objects import ObjectKey

log = structlog.get_logger()


class ReplicaSetController:
    """One queue of ReplicaSets."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "replicaset"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(REPLICASETS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(PODS, enqueue_owner(self.queue, REPLICASETS))
        cluster.listen(PODS, self._orphan_changed)

    def _orphan_changed(self, pod: Json) -> None:
        if controller_of(pod) is not None:
            return
        # Also the former owner of a pod just released: it must create another.
        for candidate in self._cluster.known(REPLICASETS, pod["metadata"]["namespace"]):
            self.queue.add(key_of(candidate))

    async def reconcile(self, key: ObjectKey) -> None:
        owner = await self._cluster.fetch(REPLICASETS, key)
        if owner is None:
            return
        selector = label_selector(owner["spec"].get("selector")) or LabelSelector()
        claimed = await self._claim(owner, selector)
        active = [pod for pod in claimed if is_active(pod)]
        failure: KubeError | None = None
        if not is_terminating(owner):
            failure = await self._scale(owner, active)
        await self._cluster.write_status(REPLICASETS, owner, self._status(owner, active, failure))
        if failure is not None:
            raise failure  # requeued, with a growing pause

    async def _claim(self, owner: Json, selector: LabelSelector) -> list[Json]:
        """Return the owner's pods, after adopting and releasing."""
        mine = []
        for pod in await self._cluster.pods(owner["metadata"]["namespace"]):
            matches = selector.matches(labels(pod))
            if is_owned_by(pod, owner):
                if matches or is_terminating(pod):
                    mine.append(pod)
                else:
                    await self._release(owner, pod)
            elif matches and controller_of(pod) is None and self._may_adopt(owner, pod):
                await self._adopt(owner, pod)
                mine.append(pod)
        return mine

    @staticmethod
    def _may_adopt(owner: Json, pod: Json) -> bool:
        return is_active(pod) and not is_terminating(owner)

    async def _release(self, owner: Json, pod: Json) -> None:
        meta = pod["metadata"]
        patch: Json = {
            "metadata": {
                "uid": meta["uid"],
                "ownerReferences": [{"$patch": "delete", "uid": owner["metadata"]["uid"]}],
            }
        }
        try:
            await self._cluster.client.patch(
                PODS, meta["name"], patch, namespace=meta["namespace"], how=PatchType.STRATEGIC
            )
        except (NotFound, Invalid):
            return
        log.info("pod_released", pod=str(key_of(pod)), replicaset=owner["metadata"]["name"])

    async def _adopt(self, owner: Json, pod: Json) -> None:
        meta = pod["metadata"]
        patch: Json = {
            "metadata": {
                "uid": meta["uid"],
                "ownerReferences": [owner_reference(REPLICASETS, owner)],
            }
        }
        await self._cluster.client.patch(
            PODS, meta["name"], patch, namespace=meta["namespace"], how=PatchType.STRATEGIC
        )
        log.info("pod_adopted", pod=str(key_of(pod)), replicaset=owner["metadata"]["name"])

    async def _scale(self, owner: Json, active: list[Json]) -> KubeError | None:
        """Create or delete pods; return why one could not be created."""
        missing = owner["spec"]["replicas"] - len(active)
        for _ in range(missing):
            pod = from_template(owner["spec"]["template"], kind=REPLICASETS, owner=owner)
            pod["metadata"]["generateName"] = f"{owner['metadata']['name']}-"
            try:
                await self._cluster.create_pod(REPLICASETS, owner, pod)
            except KubeError as error:
                return error
        surplus = sorted(active, key=deletion_rank)[: max(0, -missing)]
        for pod in surplus:
            await delete_pod(self._cluster.client, pod)
        return None

    def _status(self, owner: Json, active: list[Json], failure: KubeError | None) -> Json:
        ready = sum(map(is_ready, active))
        before = owner.get("status") or {}
        status: Json = {
            "replicas": len(active),
            "fullyLabeledReplicas": len(active),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": owner["metadata"]["generation"],
        }
        # The API server omits zeroes; with them the status would always differ.
        status = {key: value for key, value in status.items() if value or key == "replicas"}
        others = [
            other for other in before.get("conditions") or [] if other["type"] != "ReplicaFailure"
        ]
        conditions = [*others, *self._failure_condition(before, failure)]
        return {**status, "conditions": conditions} if conditions else status

    def _failure_condition(self, before: Json, failure: KubeError | None) -> list[Json]:
        if failure is None:
            return []
        kept = [
            condition
            for condition in before.get("conditions") or []
            if condition["type"] == "ReplicaFailure"
        ]
        refused = isinstance(failure, (Forbidden, Invalid)) or failure.status is not None
        message = failure.message if refused else str(failure)
        if kept and kept[0].get("message") == message:
            return kept
        moment = format_time(self._cluster.clock.now())
        return [
            {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": message,
                "lastTransitionTime": moment,
            }
        ]
