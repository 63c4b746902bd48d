"""PreStart: finds the container that holds some slots, and writes its CDI spec or rejects it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from deviceplugin.claims import (
    Claim,
    NodeClaims,
    PodKey,
    Rejected,
    RejectReason,
    SlotHolder,
    pods_elsewhere,
    resolve,
)
from deviceplugin.container.cdi import CdiError, CdiSpec, device_name
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.injection import InjectionError, SpecStore
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.kubelet.slot_history import SlotHistory, new_token
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.errors import KubeError, NotFound
from kube.kinds import PODS, Kind
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
# How long a start waits for another one of the same slots that is being prepared.
_TURN_LIMIT_S: Final = 10.0


class PreStartError(Exception):
    """The container may not start; the text says why and reaches the pod's events."""


class PodReader(Protocol):
    """The part of a kube client that a start needs."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes: ...


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


NodePods = Callable[[], Mapping[PodKey, PodInfo] | None]
"""This node's pods as the informer has them; None until it has read them all once."""


RunningContainers = Callable[[], Awaitable[frozenset[tuple[str, str]]]]
"""Asks the runtime for the pod UID and name of each container that runs now.

Raises ``RuntimeUnknownError`` if there is no answer.
"""


class PreStartHandler:
    """Decides container starts and writes the CDI spec of each container that may start.

    Args:
        node: this node's name.
        tracker: the node's inventory.
        pod_resources: kubelet's list of holders.
        reader: reads one pod from the API server.
        pods: the informer's pods of this node.
        running: asks the runtime which containers run.
        builder: builds a container's CDI spec.
        locations: where to write it.
        clock: for durations.
        pod_lookup_timeout_s: longest wait for the API server; kubelet gives up after 30 s.
        metrics: counts starts by outcome.
        on_prepared: called with the claim of each container that may start.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pod_resources: PodResources,
        reader: PodReader,
        pods: NodePods,
        running: RunningContainers,
        builder: ContainerSpecBuilder,
        locations: SpecLocations,
        clock: Clock,
        pod_lookup_timeout_s: float,
        metrics: DevicePluginMetrics,
        on_prepared: Callable[[Claim], None],
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pod_resources = pod_resources
        self._reader = reader
        self._pods = pods
        self._running = running
        self._builder = builder
        self._locations = locations
        self._clock = clock
        self._pod_lookup_timeout_s = pod_lookup_timeout_s
        self._metrics = metrics
        self._on_prepared = on_prepared
        self._history = SlotHistory()
        self._written_at_s: dict[str, float] = {}
        # The starts that wait until it is clear whose they are, and what others of the same ids are
        # rejected with meanwhile.
        self._in_doubt: dict[frozenset[str], str] = {}
        # Each is there as long as a start has or awaits its turn.
        self._turns: WeakValueDictionary[frozenset[str], asyncio.Lock] = WeakValueDictionary()

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
        async with self._turn(slot_ids):
            if slot_ids in self._in_doubt:
                raise self._reject_for_now(slot_ids)
            allocations = self._history.generation(slot_ids)
            holders, result = await self._resolve(slot_ids)
            if isinstance(result, Claim) or result.reason is not RejectReason.SEVERAL_PODS:
                return await self._wire(slot_ids, holders, result, allocations=allocations)
            self._history.doubted(slot_ids)
            self._in_doubt[slot_ids] = new_token()
        log.warning("slots_given_twice", slots=sorted(slot_ids), reason=result.text)
        try:
            holders, result = await self._wait_until_clear(slot_ids, give_up_s=give_up_s)
            async with self._turn(slot_ids):
                return await self._wire(slot_ids, holders, result, allocations=allocations)
        finally:
            del self._in_doubt[slot_ids]

    @asynccontextmanager
    async def _turn(self, slot_ids: frozenset[str]) -> AsyncIterator[None]:
        """Let one start at a time look whose *slot_ids* are, and write their spec.

        Otherwise a slow write for a pod that has lost them could follow that for the next holder.
        """
        turn = self._turns.get(slot_ids)
        if turn is None:
            turn = self._turns[slot_ids] = asyncio.Lock()
        try:
            async with asyncio.timeout(_TURN_LIMIT_S):
                await turn.acquire()
        except TimeoutError:
            text = "an earlier start of these slots is still being prepared"
            raise self._reject("busy", f"{text} after {_TURN_LIMIT_S:g} s") from None
        try:
            yield
        finally:
            turn.release()

    def _reject_for_now(self, slot_ids: frozenset[str]) -> PreStartError:
        """Return the rejection of a start while another one waits until it is clear whose it is."""
        text = (
            f"[{self._in_doubt[slot_ids]}] several pods may hold {', '.join(sorted(slot_ids))}; "
            "another start of them is waiting until it is clear whose it is"
        )
        return self._reject(RejectReason.SEVERAL_PODS.value, text)

    async def _wait_until_clear(
        self, slot_ids: frozenset[str], *, give_up_s: float
    ) -> tuple[Sequence[SlotHolder], Claim | Rejected]:
        """Wait until the other holders of *slot_ids* are proven to be elsewhere.

        Meanwhile every other start of these ids is rejected with a token, which kubelet writes into
        the status of the pod that wanted it.
        """
        while True:
            running: frozenset[tuple[str, str]] = frozenset()
            try:
                running = await self._running()
            except RuntimeUnknownError as error:
                log.warning("running_containers_unknown", reason=str(error))
            holders, result = await self._resolve(
                slot_ids, running=running, refused_with=self._in_doubt[slot_ids]
            )
            clear = isinstance(result, Claim) or result.reason is not RejectReason.SEVERAL_PODS
            if clear or self._clock.monotonic() >= give_up_s:
                return holders, result
            await self._clock.sleep(_CALLER_POLL_S)

    async def _resolve(
        self,
        slot_ids: frozenset[str],
        *,
        running: frozenset[tuple[str, str]] = frozenset(),
        refused_with: str = "",
    ) -> tuple[Sequence[SlotHolder], Claim | Rejected]:
        try:
            holders = await self._pod_resources.holders()
        except PodResourcesError as error:
            raise self._reject("kubelet_silent", str(error)) from error
        pods = await self._pods_of(slot_ids, holders)
        elsewhere: frozenset[str] = frozenset()
        if refused_with:
            elsewhere = pods_elsewhere(slot_ids, holders, pods, running=running, token=refused_with)
        node_claims = NodeClaims(
            node=self._node,
            cards=self._tracker.inventory.by_uuid(),
            pods=pods,
            token=self._history.token(slot_ids),
            owner_uid=self._history.owner_uid(slot_ids),
            elsewhere=elsewhere,
        )
        return holders, resolve(slot_ids, holders, node_claims)

    async def _wire(
        self,
        slot_ids: frozenset[str],
        holders: Sequence[SlotHolder],
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
            self._remove_stale(holders, keep=name)
            # Set before the write as well: a concurrent start, whose list from kubelet may lack
            # this container, must not remove the spec as stale.
            self._written_at_s[name] = self._clock.monotonic()
            for folder in stores:
                await _written(folder, spec)
        except CdiError as error:
            raise self._reject("cdi_folder", str(error)) from error
        # The spec just written for the old holder is overwritten before the new one starts: that
        # start waits for this one.
        if self._history.generation(slot_ids) != allocations:
            raise self._reject("handed_on", _REALLOCATED)
        self._history.verified(slot_ids, pod_uid="" if result.shared else result.pod.record.uid)
        self._written_at_s[name] = self._clock.monotonic()
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

    def _remove_stale(self, holders: Iterable[SlotHolder], *, keep: str = "") -> None:
        now_s = self._clock.monotonic()
        fresh = {name for name, at_s in self._written_at_s.items() if now_s - at_s < _UNLISTED_S}
        held = {device_name(holder.slot_ids) for holder in holders}
        for folder in self._locations.folders:
            for name in sorted(folder.names() - held - fresh - {keep}):
                folder.remove(name)
                self._written_at_s.pop(name, None)
                log.info("stale_spec_removed", device=name)

    async def _pods_of(
        self, slot_ids: frozenset[str], holders: Iterable[SlotHolder]
    ) -> Mapping[PodKey, PodInfo]:
        known = self._pods()
        if known is None:
            raise self._reject("pods_unknown", "this node's pods have not been listed yet")
        pods = dict(known)
        keys = {holder.key for holder in holders if holder.slot_ids & slot_ids}
        token = self._history.token(slot_ids)
        if token:
            keys |= {key for key, pod in known.items() if _carries(pod, token)}
        for key in sorted(keys):
            pod = await self._pod(key, known.get(key), self._history.owner_uid(slot_ids))
            if pod is None:
                pods.pop(key, None)
            else:
                pods[key] = pod
        return pods

    async def _pod(self, key: PodKey, known: PodInfo | None, owner_uid: str) -> PodInfo | None:
        """Return the pod from the API server; if that fails, *known* if it was verified before.

        The informer's copy is not enough for a new pod: one that is deleted and re-created under
        its name on this node may reach kubelet before it reaches us, and the old pod's cards are
        not the new one's.
        """
        namespace, name = key
        try:
            async with asyncio.timeout(self._pod_lookup_timeout_s):
                return decode_pod_info(await self._reader.get(PODS, name, namespace=namespace))
        except NotFound:
            return None
        except (KubeError, TimeoutError, WireError) as error:
            if known is not None and known.record.uid == owner_uid:
                log.warning("pod_taken_from_memory", pod="/".join(key), reason=str(error))
                return known
            limit = f"no answer in {self._pod_lookup_timeout_s:g} s"
            text = (
                f"cannot read pod {namespace}/{name}, and a container that was not verified "
                f"before must wait for the API server: {str(error) or limit}"
            )
            raise self._reject("api_silent", text) from error

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
        await asyncio.wait([writing])
        raise


def _carries(pod: PodInfo, token: str) -> bool:
    return any(token in text for text in pod.waiting.values())
