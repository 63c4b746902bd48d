"""Deletes objects without a remaining owner.

Source: k8s.io/kubernetes pkg/controller/garbagecollector. Owners are looked up only among the kinds
that the controllers watch.
"""

from __future__ import annotations

from typing import Final

import structlog

from kube.errors import NotFound
from kube.kinds import Kind
from kube.objects import ObjectKey
from simulator.controllers.controller import FOLLOWED, SharedInformers, WorkQueue, key_of
from simulator.objects import Json

log = structlog.get_logger()

_OWNERS: Final = {(kind.group_version, kind.kind): kind for kind in FOLLOWED}


class GarbageCollector:
    """One queue of objects of one kind that have owners."""

    def __init__(self, cluster: SharedInformers, kind: Kind) -> None:
        self.name = f"garbage-{kind.plural}"
        self.queue = WorkQueue()
        self._cluster = cluster
        self._kind = kind
        cluster.listen(kind, lambda found: self.queue.add(key_of(found)))
        for owner_kind in FOLLOWED:
            cluster.listen(owner_kind, self._owner_changed)

    def _owner_changed(self, owner: Json) -> None:
        for dependent in self._cluster.known(self._kind, owner["metadata"].get("namespace", "")):
            if _refers_to(dependent, owner["metadata"]["uid"]):
                self.queue.add(key_of(dependent))

    async def reconcile(self, key: ObjectKey) -> None:
        known = self._cluster.informers[self._kind].get(key.namespace, key.name)
        if known is None or not self._needs_a_look(known):
            return
        found = await self._cluster.fetch(self._kind, key)
        if found is None:
            return
        meta = found["metadata"]
        if "deletionTimestamp" in meta or not await self._is_orphan(found):
            return
        try:
            await self._cluster.client.delete(
                self._kind,
                key.name,
                namespace=key.namespace,
                uid=meta["uid"],
            )
        except NotFound:
            return
        log.info("orphan_collected", kind=self._kind.kind, object=str(key))

    def _needs_a_look(self, known: Json) -> bool:
        """Report from the informers alone whether the API server must be asked."""
        meta = known["metadata"]
        owners = meta.get("ownerReferences") or []
        return bool(owners) and not any(
            self._is_known(meta["namespace"], reference) for reference in owners
        )

    def _is_known(self, namespace: str, reference: Json) -> bool:
        kind = _OWNERS.get((reference["apiVersion"], reference["kind"]))
        if kind is None:
            return False
        owner = self._cluster.informers[kind].get(namespace, reference["name"])
        return owner is not None and owner["metadata"]["uid"] == reference["uid"]

    async def _is_orphan(self, found: Json) -> bool:
        """Report whether *found* has owner references and none of the owners exists."""
        owners = found["metadata"].get("ownerReferences") or []
        for reference in owners:
            if not await self._is_gone(found["metadata"]["namespace"], reference):
                return False
        return bool(owners)

    async def _is_gone(self, namespace: str, reference: Json) -> bool:
        kind = _OWNERS.get((reference["apiVersion"], reference["kind"]))
        if kind is None:
            return False  # of a kind that we do not watch
        owner = await self._cluster.fetch(kind, ObjectKey(namespace, reference["name"]))
        return owner is None or owner["metadata"]["uid"] != reference["uid"]


def _refers_to(value: Json, uid: str) -> bool:
    return any(
        reference["uid"] == uid for reference in value["metadata"].get("ownerReferences") or []
    )


def collectors(cluster: SharedInformers) -> list[GarbageCollector]:
    """Return one collector for each kind that can have owners."""
    return [GarbageCollector(cluster, kind) for kind in FOLLOWED]
