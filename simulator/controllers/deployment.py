"""Keeps one ReplicaSet for a Deployment's current template, and none of the pods of earlier ones.

Source: k8s.io/kubernetes pkg/controller/deployment/sync.go. Old and new pods change places at once,
whatever the strategy; rollback and pausing are left out as well.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from kube.errors import AlreadyExists
from kube.kinds import DEPLOYMENTS, REPLICASETS
from simulator.controllers.controller import (
    SharedInformers,
    WorkQueue,
    enqueue_owner,
    is_owned_by,
    key_of,
    owner_reference,
)
from simulator.controllers.pods import is_terminating
from simulator.objects import Json, encode, thaw

if TYPE_CHECKING:
    from kube.objects import ObjectKey

_HASH: Final = "pod-template-hash"
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


class DeploymentController:
    """One queue of Deployments."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "deployment"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(DEPLOYMENTS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(REPLICASETS, enqueue_owner(self.queue, DEPLOYMENTS))

    async def reconcile(self, key: ObjectKey) -> None:
        owner = await self._cluster.fetch(DEPLOYMENTS, key)
        if owner is None or is_terminating(owner):
            return
        owned = [
            found
            for found in await self._cluster.listed(REPLICASETS, key.namespace)
            if is_owned_by(found, owner)
        ]
        template = owner["spec"]["template"]
        current = next(
            (replicaset for replicaset in owned if _template_of(replicaset) == template), None
        )
        if current is None:
            current = await self._create(owner)
            owned.append(current)
        for each in owned:
            await self._scale(each, owner["spec"]["replicas"] if each is current else 0)
        await self._cluster.write_status(DEPLOYMENTS, owner, _status(owner, current, owned))

    async def _create(self, owner: Json) -> Json:
        template = thaw(owner["spec"]["template"])
        digest = _hash(template)
        template.setdefault("metadata", {}).setdefault("labels", {})[_HASH] = digest
        selector = thaw(owner["spec"]["selector"])
        selector.setdefault("matchLabels", {})[_HASH] = digest
        wanted: Json = {
            "metadata": {
                "name": f"{owner['metadata']['name']}-{digest}",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [owner_reference(DEPLOYMENTS, owner)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        namespace = owner["metadata"]["namespace"]
        try:
            return await self._cluster.client.create(REPLICASETS, wanted, namespace=namespace)
        except AlreadyExists:
            name = wanted["metadata"]["name"]
            found = await self._cluster.client.get_object(REPLICASETS, name, namespace=namespace)
            if not is_owned_by(found, owner):
                raise  # the name belongs to another owner's ReplicaSet; only the log can say so
            return found

    async def _scale(self, replicaset: Json, replicas: int) -> None:
        if replicaset["spec"]["replicas"] == replicas:
            return
        meta = replicaset["metadata"]
        await self._cluster.client.patch(
            REPLICASETS,
            meta["name"],
            {"spec": {"replicas": replicas}, "metadata": {"uid": meta["uid"]}},
            namespace=meta["namespace"],
        )


def _status(owner: Json, current: Json, owned: list[Json]) -> Json:
    counts = {
        field: sum((each.get("status") or {}).get(field, 0) for each in owned)
        for field in ("replicas", "readyReplicas", "availableReplicas")
    }
    counts["updatedReplicas"] = (current.get("status") or {}).get("replicas", 0)
    counts["observedGeneration"] = owner["metadata"]["generation"]
    # The API server omits zeroes; with them the status would always differ.
    return {field: count for field, count in counts.items() if count}


def _template_of(replicaset: Json) -> Json:
    """Return a ReplicaSet's template as in its Deployment."""
    template = thaw(replicaset["spec"]["template"])
    template.get("metadata", {}).get("labels", {}).pop(_HASH, None)
    return template


def _hash(template: Json) -> str:
    """Return a hash of a template; equal templates have equal hashes."""
    number = int.from_bytes(hashlib.sha256(encode(template)).digest()[:8], "big")
    letters = []
    for _ in range(10):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)
