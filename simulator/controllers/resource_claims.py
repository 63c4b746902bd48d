"""The resource claim controller: frees claims of pods that need them no more.

Source: k8s.io/kubernetes pkg/controller/resourceclaim; without templates.
"""

from __future__ import annotations

from fracgpu.k8s.pod import has_ended
from kube.kinds import PODS, RESOURCE_CLAIMS
from kube.objects import ObjectKey
from simulator.controllers.controller import SharedInformers, WorkQueue, key_of
from simulator.controllers.pods import is_terminating, phase
from simulator.objects import CLAIM_FINALIZER, Json


class ResourceClaimController:
    """Deallocates a claim when no pod that it is reserved for needs it, and lets it be deleted."""

    name = "resource-claim"

    def __init__(self, cluster: SharedInformers) -> None:
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(RESOURCE_CLAIMS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(PODS, self._pod_changed)

    def _pod_changed(self, pod: Json) -> None:
        namespace = pod["metadata"]["namespace"]
        for each in pod["spec"].get("resourceClaims") or ():
            if name := each.get("resourceClaimName"):
                self.queue.add(ObjectKey(namespace, name))

    async def reconcile(self, key: ObjectKey) -> None:
        claim = await self._cluster.fetch(RESOURCE_CLAIMS, key)
        if claim is None:
            return
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        valid = [each for each in reserved if await self._needs(key.namespace, each)]
        if valid == reserved and (valid or not is_terminating(claim)):
            return
        kept = {**status, "reservedFor": valid} if valid else {}
        if kept != status:
            claim = await self._cluster.client.replace(
                RESOURCE_CLAIMS, {**claim, "status": kept}, subresource="status"
            )
        finalizers = claim["metadata"].get("finalizers") or []
        if not valid and CLAIM_FINALIZER in finalizers:
            left = [each for each in finalizers if each != CLAIM_FINALIZER]
            meta = {**claim["metadata"], "finalizers": left}
            await self._cluster.client.replace(RESOURCE_CLAIMS, {**claim, "metadata": meta})

    async def _needs(self, namespace: str, consumer: Json) -> bool:
        if consumer["resource"] != PODS.plural:
            return True
        pod = await self._cluster.fetch(PODS, ObjectKey(namespace, consumer["name"]))
        if pod is None or pod["metadata"]["uid"] != consumer["uid"] or has_ended(phase(pod)):
            return False
        return bool(pod["spec"].get("nodeName")) or not is_terminating(pod)
