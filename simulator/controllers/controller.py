"""What all controllers share: a work queue of keys, shared informers, and owner references."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from kube.events import EventLevel, EventRecorder, Regarding
from kube.informer import Informer
from kube.kinds import DEPLOYMENTS, PDBS, PODS, REPLICASETS, RESOURCE_CLAIMS
from kube.objects import ObjectKey
from simulator.objects import Json, decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kube.client import KubeClient
    from kube.informer import Change
    from kube.kinds import Kind
    from process.clock import Clock

log = structlog.get_logger()

FOLLOWED: Final = (PODS, REPLICASETS, DEPLOYMENTS, PDBS, RESOURCE_CLAIMS)
_RETRY_S: Final = 0.5  # after a conflict or an outage
_LONGEST_RETRY_S: Final = 10.0


class WorkQueue:
    """Keys to reconcile, each at most once."""

    def __init__(self) -> None:
        self._keys: dict[ObjectKey, None] = {}
        self._filled = asyncio.Event()

    def add(self, key: ObjectKey) -> None:
        self._keys[key] = None
        self._filled.set()

    def add_after(self, delay_s: float, key: ObjectKey) -> None:
        """Add *key* in *delay_s* seconds of real time."""
        asyncio.get_running_loop().call_later(delay_s, self.add, key)

    async def get(self) -> ObjectKey:
        """Return the key that has waited longest, waiting for one."""
        while not self._keys:
            self._filled.clear()
            await self._filled.wait()
        key = next(iter(self._keys))
        del self._keys[key]
        return key


class SharedInformers:
    """One connection and one informer of each kind, shared by all controllers."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self.client: Final = client
        self.clock: Final = clock
        self._events = EventRecorder(client, "controllers", clock)
        self._complaints: dict[str, str] = {}
        self._listeners: dict[Kind, list[Callable[[Json], None]]] = {kind: [] for kind in FOLLOWED}
        self.informers: Final[dict[Kind, Informer[Json]]] = {
            kind: Informer(
                client,
                kind,
                decode=decode,
                on_change=self._teller(kind),
                optional=kind is RESOURCE_CLAIMS,  # not before Kubernetes 1.34
            )
            for kind in FOLLOWED
        }

    def _teller(self, kind: Kind) -> Callable[[Change[Json]], None]:
        def tell(change: Change[Json]) -> None:
            for listener in self._listeners[kind]:
                listener(change.object)

        return tell

    def listen(self, kind: Kind, listener: Callable[[Json], None]) -> None:
        """Call *listener* with every object of *kind* that appears, changes or goes."""
        self._listeners[kind].append(listener)

    def known(self, kind: Kind, namespace: str | None = None) -> list[Json]:
        """Return the informer's objects: good for finding what to reconcile, not for counting."""
        items = self.informers[kind].items()
        return [v for k, v in items.items() if namespace is None or k.namespace == namespace]

    async def pods(self, namespace: str) -> list[Json]:
        """Return a namespace's pods from the API server: a stale count would create pods twice."""
        listed = await self.client.list(PODS, namespace=namespace)
        return [decode(bytes(raw)) for raw in listed.items]

    async def listed(self, kind: Kind, namespace: str) -> list[Json]:
        """Return a namespace's objects of *kind* from the API server; none if it is not served."""
        try:
            found = await self.client.list(kind, namespace=namespace)
        except NotFound:
            return []
        return [decode(bytes(raw)) for raw in found.items]

    async def fetch(self, kind: Kind, key: ObjectKey) -> Json | None:
        """Return one object from the API server; None if it is gone."""
        try:
            return await self.client.get_object(
                kind, key.name, namespace=key.namespace if kind.namespaced else None
            )
        except NotFound:
            return None

    async def create_pod(self, kind: Kind, owner: Json, pod: Json) -> None:
        """Create a pod of *owner*; a failure is reported in an Event on the owner.

        Raises:
            KubeError: it was not created.
        """
        meta = owner["metadata"]
        try:
            await self.client.create(PODS, pod, namespace=meta["namespace"])
        except AlreadyExists:
            raise
        except KubeError as error:
            if self._complaints.get(meta["uid"]) != error.message:
                self._complaints[meta["uid"]] = error.message
                about = Regarding(
                    kind=kind, name=meta["name"], namespace=meta["namespace"], uid=meta["uid"]
                )
                await self._events.emit(
                    about,
                    reason="FailedCreate",
                    note=f"Error creating: {error.message}",
                    level=EventLevel.WARNING,
                )
            raise
        self._complaints.pop(meta["uid"], None)

    async def write_status(self, kind: Kind, value: Json, status: Json) -> None:
        """Replace the status of *value* if it differs, with its resourceVersion as precondition.

        Raises:
            Conflict: it was changed since it was read.
        """
        if (value.get("status") or {}) != status:
            await self.client.replace(kind, {**value, "status": status}, subresource="status")


class Controller(Protocol):
    """Reconciles one object of its kind with its spec."""

    name: str
    queue: WorkQueue

    async def reconcile(self, key: ObjectKey) -> None:
        """Reconcile the object; called again after every change that concerns it."""
        ...


async def run_controller(controller: Controller) -> None:
    """Process the queue until cancelled; an object that failed is retried later."""
    failures: dict[ObjectKey, int] = {}
    while True:
        key = await controller.queue.get()
        try:
            await controller.reconcile(key)
        except KubeError as error:
            failures[key] = failures.get(key, 0) + 1
            if not isinstance(error, (Conflict, NotFound)):
                log.warning(
                    "reconcile_failed", controller=controller.name, object=str(key),
                    error=str(error),
                )  # fmt: skip
            delay_s = min(_LONGEST_RETRY_S, _RETRY_S * 2.0 ** min(failures[key] - 1, 10))
            controller.queue.add_after(delay_s, key)
        else:
            failures.pop(key, None)


def key_of(value: Json) -> ObjectKey:
    """Return the key of *value*."""
    meta = value["metadata"]
    return ObjectKey(meta.get("namespace", ""), meta["name"])


def controller_of(value: Json) -> Json | None:
    """Return the owner reference that is marked as the controller."""
    owners = value["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def is_owned_by(value: Json, owner: Json) -> bool:
    """Report whether *owner* is the controller of *value*."""
    reference = controller_of(value)
    return reference is not None and reference["uid"] == owner["metadata"]["uid"]


def owner_reference(kind: Kind, owner: Json) -> Json:
    """Return the owner reference for objects that *owner* creates and controls."""
    return {
        "apiVersion": kind.group_version,
        "kind": kind.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def enqueue_owner(queue: WorkQueue, kind: Kind) -> Callable[[Json], None]:
    """Return a listener that enqueues the controller of a changed object if it is of *kind*."""

    def listener(value: Json) -> None:
        reference = controller_of(value)
        if reference is not None and reference["kind"] == kind.kind:
            queue.add(ObjectKey(value["metadata"].get("namespace", ""), reference["name"]))

    return listener
