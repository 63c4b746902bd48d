"""The plugin DynamicResources: waits for a pod's claims, allocates and reserves them.

A pod waits without a condition until all its claims exist. A claim that was allocated stays so
if its pod cannot be bound. Source: k8s.io/kubernetes pkg/scheduler/framework/plugins/
dynamicresources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kube.informer import Change, ChangeType, Informer
from kube.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from simulator.objects import CLAIM_FINALIZER, Json, decode, format_time
from simulator.scheduler.allocator import Devices, allocate, devices_of, nodes_of, taken_by

if TYPE_CHECKING:
    from kube.client import KubeClient
    from process.clock import Clock


class ClaimsChangedError(Exception):
    """The claims of a pod are not as they were when its node was chosen."""


class PodClaims:
    """The claims of pods, with what was allocated and is not observed yet.

    Args:
        client: of the API server.
        clock: for the time of an allocation.
        on_change: called when a claim, a slice or a class has changed.
    """

    def __init__(self, client: KubeClient, clock: Clock, on_change: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._assumed: dict[str, Json] = {}
        claims, slices, classes = (
            Informer(client, kind, decode=decode, on_change=heard, optional=True)
            for kind, heard in (
                (RESOURCE_CLAIMS, self._claim_changed),
                (RESOURCE_SLICES, self._changed),
                (DEVICE_CLASSES, self._changed),
            )
        )
        self._claims: Informer[Json] = claims
        self._slices: Informer[Json] = slices
        self._classes: Informer[Json] = classes

    async def run(self) -> None:
        """Follow claims, slices and classes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._claims, self._slices, self._classes):
                group.create_task(informer.run())

    async def wait_synced(self) -> None:
        for informer in (self._claims, self._slices, self._classes):
            await informer.wait_synced()

    def _changed(self, _change: Change[Any]) -> None:
        self._on_change()

    def _claim_changed(self, change: Change[Json]) -> None:
        assumed = self._assumed.get(change.uid)
        if assumed is not None and (
            change.type is ChangeType.DELETED or _version(change.object) >= _version(assumed)
        ):
            del self._assumed[change.uid]
        self._on_change()

    def of(self, pod: Json) -> Sequence[Json] | None:
        """Return a pod's claims; None until all of them exist."""
        namespace: str = pod["metadata"]["namespace"]
        statuses = {
            each["name"]: each.get("resourceClaimName")
            for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        found = []
        for each in pod["spec"].get("resourceClaims") or ():
            name = each.get("resourceClaimName") or statuses.get(each["name"]) or ""
            claim = self._claims.get(namespace, name)
            if claim is None or "deletionTimestamp" in claim["metadata"]:
                return None
            found.append(self._assumed.get(claim["metadata"]["uid"], claim))
        return found

    def devices(self) -> Devices:
        """Return all devices, and what is taken of them now."""
        claims = {claim["metadata"]["uid"]: claim for claim in self._claims.items().values()}
        return Devices(
            by_node=devices_of(self._slices.items().values()),
            taken=taken_by((claims | self._assumed).values()),
            classes={key.name: found for key, found in self._classes.items().items()},
        )

    async def reserve(self, pod: Json, node: str) -> None:
        """Allocate what of a pod's claims is not allocated yet on *node*, and reserve all for it.

        Raises:
            ClaimsChangedError: they cannot be had there any more.
            KubeError: a claim could not be written.
        """
        claims = self.of(pod)
        allocations = None if claims is None else allocated_on(claims, node, self.devices())
        if claims is None or allocations is None:
            raise ClaimsChangedError("its claims have changed since a node was chosen")
        if len({claim["metadata"]["uid"] for claim in claims}) < len(claims):
            raise ClaimsChangedError(
                "add reservation to claim: Duplicate value: it names one twice"
            )
        meta = pod["metadata"]
        consumer = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        for claim, allocation in zip(claims, allocations, strict=True):
            status = claim.get("status") or {}
            reserved = status.get("reservedFor") or []
            if consumer not in reserved:
                stamped = {"allocationTimestamp": format_time(self._clock.now()), **allocation}
                reserved = [*reserved, consumer]
                await self._write(claim, {**status, "allocation": stamped, "reservedFor": reserved})

    async def _write(self, claim: Json, status: Json) -> None:
        finalizers = claim["metadata"].get("finalizers") or []
        if CLAIM_FINALIZER not in finalizers:
            guarded = {**claim["metadata"], "finalizers": [*finalizers, CLAIM_FINALIZER]}
            claim = await self._client.replace(RESOURCE_CLAIMS, {**claim, "metadata": guarded})
        written = await self._client.replace(
            RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status"
        )
        meta = written["metadata"]
        observed = self._claims.get(meta["namespace"], meta["name"])
        if observed is None or _version(observed) < _version(written):
            self._assumed[meta["uid"]] = written


def _version(claim: Json) -> int:
    return int(claim["metadata"]["resourceVersion"])


def allocated_on(claims: Sequence[Json], node: str, devices: Devices) -> Sequence[Json] | None:
    """Return the allocation of each claim on *node*, those that exist included; None: no fit.

    Raises:
        CelError: a selector cannot be evaluated.
        NoSuchClassError: a class is missing.
    """
    have: Mapping[str, Json] = {
        claim["metadata"]["uid"]: claim["status"]["allocation"]
        for claim in claims
        if (claim.get("status") or {}).get("allocation")
    }
    for allocation in have.values():
        if node not in (nodes := tuple(nodes_of(allocation))) and nodes:
            return None
    missing = [claim for claim in claims if claim["metadata"]["uid"] not in have]
    made = allocate(missing, node, devices)
    if made is None:
        return None
    new = {claim["metadata"]["uid"]: each for claim, each in zip(missing, made, strict=True)}
    return [{**have, **new}[claim["metadata"]["uid"]] for claim in claims]
