"""Keeps pods with stable names, created and deleted one after the other.

Source: k8s.io/kubernetes pkg/controller/statefulset/stateful_set_control.go. Volume claims and
partitions are left out.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fracgpu.k8s.pod import has_ended
from kube.errors import AlreadyExists
from kube.kinds import PODS, STATEFULSETS
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
from simulator.objects import Json, encode, labels

if TYPE_CHECKING:
    from kube.objects import ObjectKey

_REVISION = "controller-revision-hash"


class StatefulSetController:
    """One queue of StatefulSets."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "statefulset"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(STATEFULSETS, lambda found: self.queue.add(key_of(found)))
        cluster.listen(PODS, enqueue_owner(self.queue, STATEFULSETS))

    async def reconcile(self, key: ObjectKey) -> None:
        owner = await self._cluster.fetch(STATEFULSETS, key)
        if owner is None:
            return
        found = await self._cluster.pods(key.namespace)
        mine = {_ordinal(owner, pod): pod for pod in found if is_owned_by(pod, owner)}
        mine.pop(-1, None)
        if not is_terminating(owner):
            await self._step(owner, mine)
        await self._cluster.write_status(STATEFULSETS, owner, _status(owner, mine))

    async def _step(self, owner: Json, mine: dict[int, Json]) -> None:
        """Take the next possible step; the next change of a pod reconciles again."""
        in_turn = owner["spec"]["podManagementPolicy"] == "OrderedReady"
        wanted = range(owner["spec"]["replicas"])
        for ordinal in wanted:
            pod = mine.get(ordinal)
            if pod is None:
                await self._create(owner, ordinal)
            elif has_ended(phase(pod)) and not is_terminating(pod):
                await delete_pod(self._cluster.client, pod)
            settled = pod is not None and is_active(pod) and is_ready(pod)
            if in_turn and not settled:
                return
        surplus = sorted((ordinal for ordinal in mine if ordinal not in wanted), reverse=True)
        for ordinal in surplus[:1] if in_turn else surplus:
            if not is_terminating(mine[ordinal]):
                await delete_pod(self._cluster.client, mine[ordinal])
        if not surplus:
            await self._update_highest(owner, mine)

    async def _create(self, owner: Json, ordinal: int) -> None:
        name = f"{owner['metadata']['name']}-{ordinal}"
        pod = from_template(owner["spec"]["template"], kind=STATEFULSETS, owner=owner)
        pod["metadata"]["name"] = name
        pod["metadata"]["labels"] = {
            **pod["metadata"].get("labels", {}),
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": str(ordinal),
            _REVISION: _revision(owner),
        }
        pod["spec"] = {**pod["spec"], "hostname": name}
        if owner["spec"].get("serviceName"):
            pod["spec"]["subdomain"] = owner["spec"]["serviceName"]
        try:
            await self._cluster.create_pod(STATEFULSETS, owner, pod)
        except AlreadyExists:
            return  # its predecessor of the same name is still terminating

    async def _update_highest(self, owner: Json, mine: dict[int, Json]) -> None:
        if owner["spec"]["updateStrategy"]["type"] != "RollingUpdate":
            return
        revision = _revision(owner)
        for ordinal in sorted(mine, reverse=True):
            pod = mine[ordinal]
            if labels(pod).get(_REVISION) != revision:
                if not is_terminating(pod):
                    await delete_pod(self._cluster.client, pod)
                return


def _ordinal(owner: Json, pod: Json) -> int:
    prefix, _, number = pod["metadata"]["name"].rpartition("-")
    if prefix != owner["metadata"]["name"] or not number.isdecimal():
        return -1
    return int(number)


def _revision(owner: Json) -> str:
    digest = hashlib.sha256(encode(owner["spec"]["template"])).hexdigest()[:10]
    return f"{owner['metadata']['name']}-{digest}"


def _status(owner: Json, mine: dict[int, Json]) -> Json:
    revision = _revision(owner)
    active = [pod for pod in mine.values() if is_active(pod)]
    ready = sum(map(is_ready, active))
    updated = sum(labels(pod).get(_REVISION) == revision for pod in active)
    counts = {
        "readyReplicas": ready,
        "currentReplicas": updated,
        "updatedReplicas": updated,
        "observedGeneration": owner["metadata"]["generation"],
    }
    return {
        "replicas": len(active),
        "availableReplicas": ready,
        **{key: value for key, value in counts.items() if value},
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
    }
