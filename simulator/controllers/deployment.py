"""Keeps one ReplicaSet for a Deployment's current template and scales earlier ones down.

Source: k8s.io/kubernetes pkg/controller/deployment: rolling.go, recreate.go, sync.go. Rollback,
pausing and proportional scaling are left out.
"""

from __future__ import annotations

import hashlib
import math
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
from simulator.objects import Json, encode, format_time, thaw

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
        earlier = [
            replicaset
            for replicaset in owned
            if replicaset["metadata"]["uid"] != current["metadata"]["uid"]
        ]
        if owner["spec"]["strategy"]["type"] == "Recreate":
            await self._recreate(owner, current, earlier)
        else:
            await self._roll(owner, current, earlier)
        await self._cluster.write_status(DEPLOYMENTS, owner, self._status(owner, current, owned))

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

    async def _recreate(self, owner: Json, current: Json, earlier: list[Json]) -> None:
        for old in earlier:
            await self._scale(old, 0)
        if not any((old.get("status") or {}).get("replicas") for old in earlier):
            await self._scale(current, owner["spec"]["replicas"])

    async def _roll(self, owner: Json, current: Json, earlier: list[Json]) -> None:
        wanted = owner["spec"]["replicas"]
        rolling = owner["spec"]["strategy"]["rollingUpdate"]
        surge = _share(rolling["maxSurge"], wanted, round_up=True)
        unavailable = _share(rolling["maxUnavailable"], wanted, round_up=False)
        if surge == 0 and unavailable == 0:
            unavailable = 1
        others = sum(old["spec"]["replicas"] for old in earlier)
        mine = min(wanted, max(current["spec"]["replicas"], wanted + surge - others))
        await self._scale(current, mine)
        available = (current.get("status") or {}).get("availableReplicas", 0)
        # Replicas of the new one that are not available yet do not count.
        spare = others + min(available, mine) - (wanted - unavailable)
        for old in sorted(
            earlier, key=lambda replicaset: replicaset["metadata"]["creationTimestamp"]
        ):
            less = max(0, min(spare, old["spec"]["replicas"]))
            await self._scale(old, old["spec"]["replicas"] - less)
            spare -= less

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

    def _status(self, owner: Json, current: Json, owned: list[Json]) -> Json:
        def total(field: str, sets: list[Json]) -> int:
            return sum((replicaset.get("status") or {}).get(field, 0) for replicaset in sets)

        wanted, available = owner["spec"]["replicas"], total("availableReplicas", owned)
        counts = {
            "replicas": total("replicas", owned),
            "updatedReplicas": total("replicas", [current]),
            "readyReplicas": total("readyReplicas", owned),
            "availableReplicas": available,
            "unavailableReplicas": max(0, wanted - available),
            "observedGeneration": owner["metadata"]["generation"],
        }
        rolling = owner["spec"]["strategy"].get("rollingUpdate") or {}
        unavailable = _share(rolling.get("maxUnavailable", 0), wanted, round_up=False)
        enough = available >= wanted - unavailable
        condition = {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        }
        before = (owner.get("status") or {}).get("conditions") or []
        kept = next((other for other in before if other["type"] == "Available"), None)
        if kept is not None and kept["status"] == condition["status"]:
            condition = kept
        else:
            moment = format_time(self._cluster.clock.now())
            condition |= {"lastTransitionTime": moment, "lastUpdateTime": moment}
        others = [other for other in before if other["type"] != "Available"]
        return {**{k: v for k, v in counts.items() if v}, "conditions": [*others, condition]}


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


def _share(amount: int | str, total: int, *, round_up: bool) -> int:
    """Return 2, or "25%" of *total*, as a count."""
    if isinstance(amount, int):
        return amount
    exact = int(amount.removesuffix("%")) * total / 100
    return math.ceil(exact) if round_up else math.floor(exact)
