"""Publishes the node's cards as a ResourceSlice, and again whenever somebody has removed it."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu import names
from fracgpu.device_claims.devices import pool_spec
from fracgpu.device_claims.taints import Taints
from fracgpu.k8s.quantity import parse
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.informer import Informer
from kube.kinds import NODES, RESOURCE_SLICES
from kube.objects import decode_object
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

Json = Mapping[str, Any]

_CALM_S: Final = 60.0
_AFTER_FAILURE_S: Final = 1.0
_GATE: Final = "DRAConsumableCapacity"
_TAINTS_GATE: Final = "DRADeviceTaints"
_MOST_NAME: Final = 253  # of an object, RFC 1123 subdomain
# Somebody who deletes our slices in a loop gets as many answers, and no more.
_LEAST_S: Final = 0.05


def slice_name(node: str) -> str:
    """Return the name of a node's slice: always the same, so that two agents write one slice.

    Where the node's own name leaves no room for the driver's, a part of its hash is in its place.
    """
    name = f"{node}-{names.DRA_DRIVER}"
    if len(name) <= _MOST_NAME:
        return name
    hashed = f"-{hashlib.sha256(node.encode()).hexdigest()[:16]}-{names.DRA_DRIVER}"
    return node[: _MOST_NAME - len(hashed)].rstrip("-.") + hashed


def watch_slices(
    client: KubeClient, node: str, *, on_change: Callable[[], None]
) -> Informer[dict[str, Any]]:
    """Return an informer of our driver's slices of a node."""
    return Informer(
        client,
        RESOURCE_SLICES,
        decode=decode_object,
        field_selector=f"spec.nodeName={node},spec.driver={names.DRA_DRIVER}",
        on_change=lambda _: on_change(),
    )


def differs(have: Json, want: Json) -> bool:
    """Report whether a slice's spec is another one than that wanted, its generation aside."""
    return _comparable(have) != _comparable(want)


def _dropped(have: Json, want: Json) -> str:
    """Return what of the wanted devices is missing or another in a slice, in words."""
    found, wanted = _comparable(have), _comparable(want)
    fields = {
        key
        for one, other in zip(found["devices"], wanted["devices"], strict=False)
        for key, value in other.items()
        if one.get(key) != value
    }
    return ", ".join(sorted(fields)) or "fields"


def _comparable(spec: Json) -> Json:
    """Return a spec without its generation, and with quantities that are equal if they are."""
    pool = {key: value for key, value in spec["pool"].items() if key != "generation"}
    devices = [
        {**each, "capacity": _quantities(each.get("capacity", {})), **_taints(each)}
        for each in spec.get("devices") or ()
    ]
    return {**spec, "pool": pool, "devices": devices}


def _taints(device: Json) -> Json:
    """Return the taints of a device without the times that the API server adds."""
    taints = device.get("taints") or ()
    if not taints:
        return {}
    return {"taints": [{k: v for k, v in each.items() if k != "timeAdded"} for each in taints]}


def _quantities(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _quantities(part) for key, part in value.items()}
    return parse(value)


class SlicePublisher:
    """Compares the slice with the cards at every change of either, and writes what differs.

    Kubelet deletes the node's slices when it starts, and a driver's when it has been gone for half
    a minute. An agent that ends leaves its slice: the next one takes it over.

    Args:
        node: the node's name.
        client: writes slices.
        slices: our driver's slices of this node.
        tracker: the node's inventory.
        withheld: why the node offers no card, or None.
        unsure: why it is not known yet whether the node offers its cards, or None: no slice is made
            then, and one that is there stays.
        taints: what keeps claims off cards, and when that changes by itself, if ever; None while it
            is not known: the slice then stays as it is.
        isolation: by what containers are limited on the node's cards.
        card_class: the class of the node's cards, as its label says; empty without one.
        clock: paces the comparisons.
        metrics: counts the writes.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        client: KubeClient,
        slices: Callable[[], Sequence[Json] | None],
        tracker: InventoryTracker,
        withheld: Callable[[], str | None],
        unsure: Callable[[], str | None],
        taints: Callable[[], tuple[Taints, datetime | None] | None],
        isolation: Callable[[], Sequence[str]],
        card_class: Callable[[], str],
        clock: Clock,
        metrics: DevicePluginMetrics,
    ) -> None:
        self._node = node
        self._client = client
        self._slices = slices
        self._tracker = tracker
        self._withheld = withheld
        self._unsure = unsure
        self._taints = taints
        self._isolation = isolation
        self._card_class = card_class
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._generation = 0
        self._changes_at: datetime | None = None
        self._calm_until_s = 0.0
        self._published = False
        self._problem: str | None = "the slice of this node has not been written yet"

    @property
    def problem(self) -> str | None:
        """Why the slice is not what it is to be, or None."""
        return self._problem

    @property
    def dropped(self) -> str | None:
        """What the API server leaves out of the slice, with the cure; None if nothing."""
        return self._problem if self._calm_until_s else None

    @property
    def published(self) -> bool:
        """Whether kube-scheduler sees the cards."""
        return self._published

    def wake(self) -> None:
        """Compare now."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the slice right until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tracker.follow(self._wake.set), name="follow_cards")
            while True:
                self._wake.clear()
                written = await self.sync()
                limit_s = self._until_change_s() if written else _AFTER_FAILURE_S
                if await wait_at_most(self._clock, self._wake, limit_s=limit_s):
                    await self._clock.sleep(_LEAST_S)

    def _until_change_s(self) -> float:
        if self._changes_at is None:
            return _CALM_S
        left_s = (self._changes_at - self._clock.now()).total_seconds()
        return min(max(left_s, _LEAST_S), _CALM_S)

    async def sync(self) -> bool:
        """Write what differs; return False if it should be tried again soon."""
        have = self._slices()
        if have is None:
            self._problem = "the slices of this node are not listed yet"
            return False
        try:
            return await self._sync(have)
        except KubeError as error:
            if self._problem != str(error):
                log.warning("slice_not_written", node=self._node, reason=str(error))
            self._metrics.node_written("failed")
            self._problem = str(error)
            return False

    async def _sync(self, have: Sequence[Json]) -> bool:
        name = slice_name(self._node)
        ours = next((each for each in have if each["metadata"]["name"] == name), None)
        withheld = self._withheld()
        for each in have:
            if each is not ours or (withheld is not None):
                await self.remove(each["metadata"]["name"])
        if withheld is not None:
            self._published, self._problem, self._calm_until_s = False, withheld, 0.0
            return True
        taints = self._taints()
        unsure = self._tracker.unseen or (self._unsure() if ours is None else None)
        if unsure is not None or taints is None:
            unsure = unsure or "the Moves, which reserve cards, are not listed yet"
            self._published, self._problem = ours is not None, unsure
            return False
        found = ours["spec"]["pool"]["generation"] if ours is not None else 0
        want = pool_spec(
            self._node,
            self._tracker.inventory.cards,
            generation=max(self._generation, found) + 1,
            isolation=self._isolation(),
            card_class=self._card_class(),
            taints=taints[0],
        )
        self._changes_at = taints[1]
        if ours is None or differs(ours["spec"], want):
            if self._clock.monotonic() < self._calm_until_s:
                return True
            dropped = await self._write(name, want, ours)
            if dropped:
                # Every further write would be dropped too, and be a change that wakes us.
                self._calm_until_s = self._clock.monotonic() + _CALM_S
                self._published = False
                gate = _TAINTS_GATE if dropped == "taints" else _GATE
                self._problem = f"the API server dropped {dropped} of the slice: turn on {gate}"
                log.warning("slice_not_written", node=self._node, reason=self._problem)
                return True
        self._published, self._problem, self._calm_until_s = True, None, 0.0
        return True

    async def _write(self, name: str, want: dict[str, Any], ours: Json | None) -> str:
        """Write the slice; return what the API server left out, empty if nothing."""
        if ours is not None:
            written = await self._client.replace(RESOURCE_SLICES, {**ours, "spec": want})
        else:
            node = await self._client.get_object(NODES, self._node)
            owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": node["metadata"]["uid"],
            }
            metadata = {"name": name, "ownerReferences": [owner]}
            body = {"metadata": metadata, "spec": want}
            written = await self._client.create(RESOURCE_SLICES, body)
        self._generation = want["pool"]["generation"]
        if differs(written["spec"], want):
            self._metrics.node_written("failed")
            return _dropped(written["spec"], want)
        self._metrics.node_written("written")
        log.info(
            "slice_written", node=self._node, devices=[each["name"] for each in want["devices"]]
        )
        return ""

    async def remove(self, name: str = "") -> None:
        """Delete a slice, by default the node's, if it is there.

        Raises:
            KubeError: the API server returned an error, or did not answer.
        """
        try:
            await self._client.delete(RESOURCE_SLICES, name or slice_name(self._node))
        except NotFound:
            return
        log.info("slice_removed", node=self._node, name=name or slice_name(self._node))
