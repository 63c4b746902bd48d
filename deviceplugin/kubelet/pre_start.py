"""PreStart: finds the container that holds some slots, and writes its CDI spec or rejects it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from deviceplugin.claims import (
    Claim,
    NodeClaims,
    PodKey,
    Rejected,
    RejectReason,
    RuntimeContainers,
    SlotHolder,
)
from deviceplugin.container.cdi import CdiError, CdiSpec, device_name
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.injection import InjectionError, SpecStore
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.kubelet.elsewhere import pods_elsewhere
from deviceplugin.kubelet.pod_lookup import PodLookup, PodLookupError
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.kubelet.resolution import resolve
from deviceplugin.kubelet.slot_history import SlotHistory, new_token
from deviceplugin.kubelet.turns import BusyError, Turns
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()

# The longest time from PreStart to the runtime's CreateContainer; until then a spec may belong to
# an init container, which PodResources does not list.
_UNLISTED_S: Final = 120.0
_REALLOCATED: Final = "kubelet has allocated the slots to another container meanwhile"
_SHARED_FOLDER: Final = (
    "kubelet has given the slots to two pods that both live (kubernetes PR 137534), and without "
    "CDI both would use the same folder; delete one of them"
)


# Kubelet waits 30 s for an answer, and tries a refused start again after 10 to 15 s. What follows
# this has to fit into the rest: a last look at all holders, and the spec.
_CALLER_LIMIT_S: Final = 15.0
_CALLER_POLL_S: Final = 1.0


class PreStartError(Exception):
    """The container may not start; the text says why and reaches the pod's events."""


class SpecLocations(Protocol):
    """Where a container's CDI spec is to be written."""

    @property
    def folders(self) -> Sequence[SpecStore]: ...

    async def stores(self, name: str) -> Sequence[SpecStore]:
        """Return where the runtime looks for the device *name*.

        Raises:
            InjectionError: the runtime would not give the container its card.
        """
        ...


ContainersOfRuntime = Callable[[], Awaitable[RuntimeContainers]]
"""Asks the runtime which containers it has.

Raises ``RuntimeUnknownError`` if there is no answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What kubelet and the API server say of some slots: the holders, and this node's pods."""

    holders: Sequence[SlotHolder]
    pods: Mapping[PodKey, PodInfo]


class PreStartHandler:
    """Decides container starts and writes the CDI spec of each container that may start.

    Args:
        node: this node's name.
        tracker: the node's inventory.
        pod_resources: kubelet's list of holders.
        lookup: knows this node's pods, and reads one from the API server.
        containers: asks the runtime which containers it has.
        builder: builds a container's CDI spec.
        locations: where to write it.
        clock: for durations.
        metrics: counts starts by outcome.
        on_prepared: called with the claim of each container that may start.
        turns: one start of a set of slots at a time.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pod_resources: PodResources,
        lookup: PodLookup,
        containers: ContainersOfRuntime,
        builder: ContainerSpecBuilder,
        locations: SpecLocations,
        clock: Clock,
        metrics: DevicePluginMetrics,
        on_prepared: Callable[[Claim], None],
        turns: Turns | None = None,
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pod_resources = pod_resources
        self._lookup = lookup
        self._containers = containers
        self._builder = builder
        self._locations = locations
        self._clock = clock
        self._metrics = metrics
        self._on_prepared = on_prepared
        self._history = SlotHistory()
        self._writing: set[str] = set()  # devices
        # The starts that wait until it is clear whose they are, and what others of the same ids are
        # rejected with meanwhile.
        self._in_doubt: dict[frozenset[str], str] = {}
        self._turns = turns or Turns()

    def allocated(self, slot_ids: frozenset[str]) -> None:
        """Record that kubelet allocates *slot_ids* to a container, which is not known yet."""
        self._history.allocated(slot_ids)

    async def prepare(self, slot_ids: frozenset[str]) -> Claim:
        """Write the CDI spec of the container that holds *slot_ids*, and return its claim.

        Raises:
            PreStartError: the container may not start, or it is not clear which one it is.
        """
        started_at_s = self._clock.monotonic()
        try:
            claim = await self._prepare(slot_ids)
        except BusyError as error:
            log.warning("container_refused", slots=sorted(slot_ids), reason=str(error))
            raise self._reject("busy", str(error)) from error
        except PreStartError as error:
            log.warning("container_refused", slots=sorted(slot_ids), reason=str(error))
            raise
        finally:
            self._metrics.start_took(self._clock.monotonic() - started_at_s)
        self._metrics.started("wired")
        log.info(
            "container_wired",
            pod=claim.pod.record.key,
            uid=claim.pod.record.uid,
            container=claim.container,
            slots=sorted(slot_ids),
            cards=[part.card for part in claim.slices],
            mib=[part.mib for part in claim.slices],
        )
        self._on_prepared(claim)
        return claim

    async def _prepare(self, slot_ids: frozenset[str]) -> Claim:
        give_up_s = self._clock.monotonic() + _CALLER_LIMIT_S
        async with self._turns.turn(slot_ids):
            if slot_ids in self._in_doubt:
                raise self._reject_for_now(slot_ids)
            allocations = self._history.generation(slot_ids)
            seen = await self._look(slot_ids)
            result = self._resolve(slot_ids, seen)
            if isinstance(result, Claim) or result.reason is not RejectReason.SEVERAL_PODS:
                return await self._wire(slot_ids, seen, result, allocations=allocations)
            self._history.doubted(slot_ids)
            self._in_doubt[slot_ids] = new_token()
        log.warning("slots_given_twice", slots=sorted(slot_ids), reason=result.text)
        try:
            seen, result = await self._wait_until_clear(slot_ids, seen, give_up_s=give_up_s)
            async with self._turns.turn(slot_ids):
                return await self._wire(slot_ids, seen, result, allocations=allocations)
        finally:
            del self._in_doubt[slot_ids]

    def _reject_for_now(self, slot_ids: frozenset[str]) -> PreStartError:
        """Return the rejection of a start while another one waits until it is clear whose it is."""
        text = (
            f"[{self._in_doubt[slot_ids]}] several pods may hold {', '.join(sorted(slot_ids))}; "
            "another start of them is waiting until it is clear whose it is"
        )
        return self._reject(RejectReason.SEVERAL_PODS.value, text)

    async def _wait_until_clear(
        self, slot_ids: frozenset[str], seen: _Seen, *, give_up_s: float
    ) -> tuple[_Seen, Claim | Rejected]:
        """Wait until the other holders of *slot_ids* are proven to be elsewhere.

        Meanwhile every other start of these ids is rejected with a token, which kubelet writes into
        the status of the pod that wanted it.

        Each answer of kubelet makes it forget what it is about to allocate (kubernetes PR 137534).
        So it is asked again only where the runtime and the informer show that it will be clear, or
        where kubelet alone knows: of a pod that was deleted by force. The decision is made on what
        kubelet and the API server say then.
        """
        token, pause_s, next_look_s = self._in_doubt[slot_ids], _CALLER_POLL_S, 0.0
        while True:
            runtime = RuntimeContainers()
            try:
                runtime = await self._containers()
            except RuntimeUnknownError as error:
                log.warning("runtime_containers_unknown", reason=str(error))
            now_s = self._clock.monotonic()
            over = now_s >= give_up_s
            if over or (now_s >= next_look_s and self._may_be_clear(slot_ids, seen, runtime)):
                seen = await self._look(slot_ids)
                result = self._resolve(slot_ids, seen, runtime=runtime, refused_with=token)
                if over or _is_clear(result):
                    return seen, result
                next_look_s, pause_s = now_s + pause_s, 2 * pause_s
            await self._clock.sleep(_CALLER_POLL_S)

    def _may_be_clear(
        self, slot_ids: frozenset[str], seen: _Seen, runtime: RuntimeContainers
    ) -> bool:
        pods = self._lookup.known() or {}
        if {holder.key for holder in seen.holders if holder.slot_ids & slot_ids} - pods.keys():
            return True
        seen = _Seen(holders=seen.holders, pods=pods)
        token = self._in_doubt[slot_ids]
        return _is_clear(self._resolve(slot_ids, seen, runtime=runtime, refused_with=token))

    async def _look(self, slot_ids: frozenset[str]) -> _Seen:
        try:
            holders = await self._pod_resources.holders()
        except PodResourcesError as error:
            raise self._reject("kubelet_silent", str(error)) from error
        keys = {holder.key for holder in holders if holder.slot_ids & slot_ids}
        try:
            pods = await self._lookup.pods(
                keys,
                token=self._history.token(slot_ids),
                owner_uid=self._history.owner_uid(slot_ids),
            )
        except PodLookupError as error:
            raise self._reject(error.outcome, str(error)) from error
        return _Seen(holders=holders, pods=pods)

    def _resolve(
        self,
        slot_ids: frozenset[str],
        seen: _Seen,
        *,
        runtime: RuntimeContainers | None = None,
        refused_with: str = "",
    ) -> Claim | Rejected:
        elsewhere: frozenset[str] = frozenset()
        if runtime is not None:
            elsewhere = pods_elsewhere(
                slot_ids, seen.holders, seen.pods, runtime=runtime, token=refused_with
            )
        node_claims = NodeClaims(
            node=self._node,
            cards=self._tracker.inventory.by_uuid(),
            pods=seen.pods,
            token=self._history.token(slot_ids),
            owner_uid=self._history.owner_uid(slot_ids),
            elsewhere=elsewhere,
            takers=self._history.takers(slot_ids),
            started=self._history.started,
        )
        return resolve(slot_ids, seen.holders, node_claims)

    async def _wire(
        self,
        slot_ids: frozenset[str],
        seen: _Seen,
        result: Claim | Rejected,
        *,
        allocations: int,
    ) -> Claim:
        """Write the CDI spec of a claim; *allocations* is the generation that it was made in."""
        if isinstance(result, Rejected):
            token = f"[{self._history.issue_token(slot_ids)}] " if result.askable else ""
            raise self._reject(result.reason.value, token + result.text)
        if self._history.generation(slot_ids) != allocations:
            raise self._reject("handed_on", _REALLOCATED)
        name = device_name(slot_ids)
        stores = await self._stores(name, shared=result.shared)
        try:
            spec = await self._builder.build(name, result, self._tracker.inventory)
        except SpecBuildError as error:
            raise self._reject("no_outfit", str(error)) from error
        try:
            # A concurrent start, whose list from kubelet may lack this container, must not remove
            # the spec as stale while it is written.
            self._writing.add(name)
            self._remove_stale(seen.holders)
            for folder in stores:
                await _written(folder, spec)
            # The next holder's start waits for this one, and writes its own spec then.
            if self._history.generation(slot_ids) != allocations:
                for folder in stores:
                    folder.remove(name)
                raise self._reject("handed_on", _REALLOCATED)
        except CdiError as error:
            raise self._reject("cdi_folder", str(error)) from error
        finally:
            self._writing.discard(name)
        uid = result.pod.record.uid
        live = {pod.record.uid for pod in seen.pods.values() if pod.record.live}
        self._history.took(
            slot_ids, pod_uid=uid, most=result.most, live=() if result.alone else live
        )
        self._history.has_started(slot_ids, pod_uid=uid, container=result.container, live=live)
        self._history.verified(slot_ids, pod_uid="" if result.shared else uid)
        return result

    async def _stores(self, name: str, *, shared: bool) -> Sequence[SpecStore]:
        try:
            stores = await self._locations.stores(name)
        except InjectionError as error:
            raise self._reject(error.outcome, str(error)) from error
        if shared and not all(store.read_once for store in stores):
            raise self._reject(RejectReason.SEVERAL_PODS.value, _SHARED_FOLDER)
        return stores

    async def clean(self) -> None:
        """Remove the specs whose slots no container holds; also done before each write."""
        try:
            self._remove_stale(await self._pod_resources.holders())
        except (PodResourcesError, CdiError) as error:
            # A leftover does no harm: PreStart overwrites it before every use.
            log.warning("stale_specs_kept", reason=str(error))

    def _remove_stale(self, holders: Iterable[SlotHolder]) -> None:
        # By the files' own time: the last agent may have written one just before it ended.
        old_s = self._clock.now().timestamp() - _UNLISTED_S
        held = {device_name(holder.slot_ids) for holder in holders}
        for folder in self._locations.folders:
            for name in sorted(folder.names() - held - self._writing):
                if folder.written_s(name) < old_s:
                    folder.remove(name)
                    log.info("stale_spec_removed", device=name)

    def _reject(self, outcome: str, text: str) -> PreStartError:
        self._metrics.started(outcome)
        return PreStartError(text)


async def _written(folder: SpecStore, spec: CdiSpec) -> None:
    """Write in a thread, so that a slow disk does not block other starts; not less than to its end.

    A thread cannot be ended. If the start is cancelled, because kubelet has given up, it is still
    this start's turn until nothing can be written any more.
    """
    writing = asyncio.get_running_loop().run_in_executor(None, folder.write, spec)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([writing])
        raise


def _is_clear(result: Claim | Rejected) -> bool:
    return isinstance(result, Claim) or result.reason is not RejectReason.SEVERAL_PODS
