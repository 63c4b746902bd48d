"""Deletes objects without a remaining owner, and empties terminating namespaces.

Source: k8s.io/kubernetes pkg/controller/garbagecollector and pkg/controller/namespace. Owners are
looked up only among the kinds that the controllers watch.
"""

from __future__ import annotations

from typing import Final

import structlog

from kube import kinds
from kube.errors import NotFound
from kube.kinds import NAMESPACES, Kind
from kube.objects import ObjectKey
from simulator.controllers.controller import FOLLOWED, SharedInformers, WorkQueue, key_of
from simulator.objects import Json

log = structlog.get_logger()

_OWNED: Final = tuple(kind for kind in FOLLOWED if kind is not NAMESPACES)
_OWNERS: Final = {(kind.group_version, kind.kind): kind for kind in _OWNED}
_CONTENT: Final = (
    *_OWNED, kinds.CONFIGMAPS, kinds.SECRETS, kinds.SERVICES, kinds.SERVICE_ACCOUNTS,
    kinds.LEASES, kinds.EVENTS,
)  # fmt: skip


class GarbageCollector:
    """One queue of objects of one kind that have owners."""

    def __init__(self, cluster: SharedInformers, kind: Kind) -> None:
        self.name = f"garbage-{kind.plural}"
        self.queue = WorkQueue()
        self._cluster = cluster
        self._kind = kind
        cluster.listen(kind, lambda found: self.queue.add(key_of(found)))
        for owner_kind in _OWNED:
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


class NamespaceController:
    """One queue of namespaces: a terminating one is emptied, then finalized."""

    def __init__(self, cluster: SharedInformers) -> None:
        self.name = "namespace"
        self.queue = WorkQueue()
        self._cluster = cluster
        cluster.listen(NAMESPACES, lambda found: self.queue.add(key_of(found)))
        for kind in _OWNED:
            cluster.listen(kind, self._content_changed)

    def _content_changed(self, changed: Json) -> None:
        namespace = self._cluster.informers[NAMESPACES].get("", changed["metadata"]["namespace"])
        if namespace is not None and "deletionTimestamp" in namespace["metadata"]:
            self.queue.add(key_of(namespace))

    async def reconcile(self, key: ObjectKey) -> None:
        namespace = await self._cluster.fetch(NAMESPACES, key)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        left = 0
        for kind in _CONTENT:
            for found in await self._cluster.listed(kind, key.name):
                left += 1
                if "deletionTimestamp" not in found["metadata"]:
                    await self._delete(kind, found)
        if left:
            self.queue.add_after(1.0, key)
            return
        empty = {**namespace, "spec": {**namespace["spec"], "finalizers": []}}
        await self._cluster.client.replace(NAMESPACES, empty, subresource="finalize")

    async def _delete(self, kind: Kind, found: Json) -> None:
        meta = found["metadata"]
        try:
            await self._cluster.client.delete(kind, meta["name"], namespace=meta["namespace"])
        except NotFound:
            return


def _refers_to(value: Json, uid: str) -> bool:
    return any(
        reference["uid"] == uid for reference in value["metadata"].get("ownerReferences") or []
    )


def collectors(cluster: SharedInformers) -> list[GarbageCollector]:
    """Return one collector for each kind that can have owners."""
    return [GarbageCollector(cluster, kind) for kind in _OWNED]
