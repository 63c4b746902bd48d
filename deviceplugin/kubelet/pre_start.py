"""Allocate and PreStart: what kubelet asks before a container starts, by either way."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from deviceplugin.claims import Claim, NodeClaims, Rejected, SlotHolder
from deviceplugin.container.cdi import (
    SHARED,
    CdiError,
    CdiFolder,
    CdiSpec,
    closed_spec,
    device_name,
)
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.container.verify_hook import VerifyHook
from deviceplugin.enforcement.promises import chosen_isolation
from deviceplugin.identity.starts import wired
from deviceplugin.identity.ways import Way, Ways
from deviceplugin.kubelet.listed import ListedClaim, listed_claim
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import Inventory, InventoryTracker
from fracgpu import names
from fracgpu.request.language import wanted_isolation, wants_kernel
from fracgpu.request.need import MECHANISMS, Isolation
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()

# The longest time from PreStart to the runtime's CreateContainer; until then a spec may belong to
# an init container, which PodResources does not list.
_UNLISTED_S: Final = 120.0


class PreStartError(Exception):
    """The container may not start; the text says why and reaches the pod's events."""


class Runtime(Protocol):
    """What we need to know of the container runtime."""

    async def check(self) -> str | None:
        """Return why it would not give a container its cards now, or None."""
        ...


class PreStartHandler:
    """Names a device at Allocate, and has its spec ready when a container starts.

    Where the runtime says whose container it creates, the spec gives nothing, and the runtime is
    answered then. Elsewhere the spec is that of the container that kubelet lists.

    Args:
        node: this node's name.
        tracker: the node's inventory.
        ways: how it is known whose container starts.
        pod_resources: kubelet's list of holders.
        pods: this node's pods by UID; None until they have been listed.
        runtime: whether the runtime reads CDI specs.
        builder: builds what a container gets.
        specs: the runtime's CDI folder.
        hook: verifies containers on the host.
        clock: for durations.
        metrics: counts starts by outcome.
        on_prepared: called with the claim of each container that may start, and what enforces its
            share.
        on_left: called for each container that may start if the runtime then asks for it.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        ways: Ways,
        pod_resources: PodResources,
        pods: Callable[[], Mapping[str, PodInfo] | None],
        runtime: Runtime,
        builder: ContainerSpecBuilder,
        specs: CdiFolder,
        hook: VerifyHook,
        clock: Clock,
        metrics: DevicePluginMetrics,
        on_prepared: Callable[[Claim, str], None],
        on_left: Callable[[], None],
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._ways = ways
        self._pod_resources = pod_resources
        self._pods = pods
        self._runtime = runtime
        self._builder = builder
        self._specs = specs
        self._hook = hook
        self._clock = clock
        self._metrics = metrics
        self._on_prepared = on_prepared
        self._on_left = on_left
        self._shared: dict[str, frozenset[str]] = {}  # by slot id, what this agent allocated so

    def allocate(self, slot_ids: frozenset[str]) -> str:
        """Return the name of the device for the container with *slot_ids*."""
        listed = self._ways.way() is Way.LISTED
        for slot_id in slot_ids:
            self._shared[slot_id] = frozenset() if listed else slot_ids
        return device_name(slot_ids) if listed else SHARED

    async def prepare(self, slot_ids: frozenset[str]) -> None:
        """Have the spec of the container with *slot_ids* ready.

        Raises:
            PreStartError: the container may not start, or it is not clear which one it is.
        """
        began_s = self._clock.monotonic()
        try:
            way = await self._usable_way()
            pods = self._pods()
            if pods is None:
                raise self._reject("pods_unknown", "this node's pods have not been listed yet")
            if way is Way.NRI:
                await self._prepare_for_nri(slot_ids)
            else:
                await self._prepare_listed(slot_ids, pods)
        except PreStartError as error:
            log.warning("container_refused", slots=sorted(slot_ids), reason=str(error))
            raise
        finally:
            self._metrics.start_took(self._clock.monotonic() - began_s)

    async def _usable_way(self) -> Way | None:
        problem = await self._runtime.check()
        if problem is not None:
            raise self._reject("runtime_unknown", problem)
        if (away := self._ways.away) is not None:
            raise self._reject("identity_unknown", away)
        return self._ways.way()

    async def _prepare_for_nri(self, slot_ids: frozenset[str]) -> None:
        name = device_name(slot_ids)
        devices = [SHARED]
        if not all(self._shared.get(slot_id) == slot_ids for slot_id in slot_ids):
            # An earlier agent may have answered Allocate with a device of these ids alone; kubelet
            # keeps that answer as long as the pod lives.
            devices.append(name)
        for device in devices:
            await self._write(closed_spec(device))
        self._on_left()
        log.debug("start_left_to_runtime", slots=sorted(slot_ids))

    async def _prepare_listed(self, slot_ids: frozenset[str], pods: Mapping[str, PodInfo]) -> None:
        try:
            holders = await self._pod_resources.holders()
        except PodResourcesError as error:
            raise self._reject("kubelet_silent", str(error)) from error
        inventory = self._tracker.inventory
        claims = NodeClaims(node=self._node, cards=inventory.by_uuid(), pods=pods)
        found = listed_claim(slot_ids, holders, claims)
        if isinstance(found, Rejected):
            raise self._reject(found.reason.value, found.text)
        if slot_ids in self._shared.values():
            text = "the pod was admitted while the container runtime had NRI on: switch it on again"
            raise self._reject("allocated_for_nri", f"{text}, or delete the pod")
        pod = found.claim.pod
        if wants_kernel(pod.annotations):
            text = f"{pod.record.key} wants {names.ISOLATION}: kernel, which needs NRI"
            raise self._reject("limit_not_proved", f"{text} in the container runtime")
        by = chosen_isolation(
            wanted_isolation(pod.annotations),
            lambda each: self._why_not(each, found.claim, inventory),
        )
        await self._write_listed(device_name(slot_ids), found, inventory, by=by)
        await self._remove_stale(holders)
        self._metrics.started("wired")
        isolation = by.value if by in MECHANISMS else Isolation.NONE.value
        log.info("container_wired", **wired(found.claim, isolation), slots=sorted(slot_ids))
        self._on_prepared(found.claim, isolation)

    def _why_not(self, isolation: Isolation, claim: Claim, inventory: Inventory) -> str | None:
        if isolation is Isolation.KERNEL:
            return "it needs NRI in the container runtime"
        return self._builder.why_not(isolation, inventory.hardware(claim.cards))

    async def _write_listed(
        self, name: str, found: ListedClaim, inventory: Inventory, *, by: Isolation
    ) -> None:
        try:
            spec = await asyncio.to_thread(self._builder.build, name, found.claim, inventory, by=by)
        except SpecBuildError as error:
            raise self._reject("no_outfit", str(error)) from error
        uid = found.claim.pod.record.uid
        verify = self._hook.edit(uid=uid, containers=found.containers)
        await self._write(replace(spec, hooks=(verify, *spec.hooks)))

    async def _write(self, spec: CdiSpec) -> None:
        try:
            await asyncio.to_thread(self._specs.write, spec)
        except CdiError as error:
            raise self._reject("cdi_folder", str(error)) from error

    async def clean(self) -> None:
        """Remove the specs whose slots no container holds; also done before each listed start."""
        try:
            await self._remove_stale(await self._pod_resources.holders())
        except PodResourcesError as error:
            # A leftover does no harm: PreStart overwrites it before every use.
            log.warning("stale_specs_kept", reason=str(error))

    async def _remove_stale(self, holders: Iterable[SlotHolder]) -> None:
        held = {device_name(holder.slot_ids) for holder in holders}
        try:
            await asyncio.to_thread(self._remove_all_but, held | {SHARED})
        except CdiError as error:
            log.warning("stale_specs_kept", reason=str(error))

    def _remove_all_but(self, kept: frozenset[str] | set[str]) -> None:
        # By the files' own time: the last agent may have written one just before it ended.
        old_s = self._clock.now().timestamp() - _UNLISTED_S
        for name in sorted(self._specs.names() - kept):
            if self._specs.written_s(name) < old_s:
                self._specs.remove(name)
                log.info("stale_spec_removed", device=name)

    def _reject(self, outcome: str, text: str) -> PreStartError:
        self._metrics.started(outcome)
        return PreStartError(text)
