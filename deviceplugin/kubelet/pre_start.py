"""One container start: who holds these slots, may it start, and the CDI spec that lets it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from deviceplugin.claims import Claim, NodeClaims, PodKey, Rejected, SlotHolder, resolve
from deviceplugin.container.cdi import CdiError, device_name
from deviceplugin.container.injection import InjectionError, SpecStore
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.kubelet.slot_memory import SlotHistory
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.errors import KubeError, NotFound
from kube.kinds import PODS, Kind
from process.clock import Clock

log = structlog.get_logger()

# Kubelet may take this long from PreStart to the runtime's CreateContainer; until then a spec may
# belong to an init container, which PodResources does not list.
_FRESH_S: Final = 120.0
_HANDED_ON: Final = "kubelet has handed the slots to another container meanwhile"


class PreStartError(Exception):
    """The container may not start; the text says why and reaches the pod's events."""


class PodReader(Protocol):
    """The part of a kube client that a start needs."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes: ...


class SpecLocations(Protocol):
    """Where what a container gets is to be written."""

    @property
    def folders(self) -> Sequence[SpecStore]: ...

    async def stores(self, name: str) -> Sequence[SpecStore]:
        """Find where the runtime would look for the device *name*.

        Raises:
            InjectionError: it would not give the container its card.
        """
        ...


NodePods = Callable[[], Mapping[PodKey, PodInfo] | None]
"""This node's pods as the informer has them; None until it has read them all once."""


class PreStartHandler:
    """Resolves container starts one after the other into CDI specs.

    Args:
        node: this node's name.
        tracker: the cards.
        pod_resources: kubelet's list of holders.
        reader: reads one pod from the API server.
        pods: the informer's pods of this node.
        builder: says what a container gets.
        places: where that goes.
        clock: for durations.
        pod_lookup_timeout_s: longest wait for the API server; kubelet gives up after 30 s.
        metrics: counts starts by outcome.
        on_wired: told of each container that was let go.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pod_resources: PodResources,
        reader: PodReader,
        pods: NodePods,
        builder: ContainerSpecBuilder,
        places: SpecLocations,
        clock: Clock,
        pod_lookup_timeout_s: float,
        metrics: DevicePluginMetrics,
        on_wired: Callable[[Claim], None],
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pod_resources = pod_resources
        self._reader = reader
        self._pods = pods
        self._builder = builder
        self._places = places
        self._clock = clock
        self._pod_lookup_timeout_s = pod_lookup_timeout_s
        self._metrics = metrics
        self._on_wired = on_wired
        self._memory = SlotHistory()
        self._written_at_s: dict[str, float] = {}

    def allocated(self, slot_ids: frozenset[str]) -> None:
        """Take notice that kubelet hands *slot_ids* to a container; whose it is, is asked later."""
        self._memory.allocated(slot_ids)

    async def prepare(self, slot_ids: frozenset[str]) -> Claim:
        """Write the CDI spec of the container that holds *slot_ids*, or refuse.

        Raises:
            NotWiredError: any doubt.
        """
        began_s = self._clock.monotonic()
        try:
            claim = await self._wire(slot_ids)
        except PreStartError as error:
            log.warning("container_refused", slots=sorted(slot_ids), reason=str(error))
            raise
        finally:
            self._metrics.start_took(self._clock.monotonic() - began_s)
        self._metrics.started("wired")
        log.info(
            "container_wired",
            pod=claim.pod.record.key,
            uid=claim.pod.record.uid,
            container=claim.container,
            slots=sorted(slot_ids),
            cards=[it.card for it in claim.slices],
            mib=[it.mib for it in claim.slices],
        )
        self._on_wired(claim)
        return claim

    async def _wire(self, slot_ids: frozenset[str]) -> Claim:
        turn = self._memory.turn(slot_ids)
        try:
            holders = await self._pod_resources.holders()
        except PodResourcesError as error:
            raise self._refusal("kubelet_silent", str(error)) from error
        pods = await self._pods_of(slot_ids, holders)
        inventory = self._tracker.inventory
        picture = NodeClaims(
            node=self._node,
            cards=inventory.by_uuid(),
            pods=pods,
            token=self._memory.token(slot_ids),
            owner_uid=self._memory.owner_uid(slot_ids),
        )
        answer = resolve(slot_ids, holders, picture)
        if isinstance(answer, Rejected):
            token = f"[{self._memory.ask(slot_ids)}] " if answer.askable else ""
            raise self._refusal(answer.reason.value, token + answer.text)
        name = device_name(slot_ids)
        try:
            stores = await self._places.stores(name)
        except InjectionError as error:
            raise self._refusal(error.outcome, str(error)) from error
        try:
            spec = await self._builder.build(name, answer, inventory)
        except SpecBuildError as error:
            raise self._refusal("no_outfit", str(error)) from error
        try:
            self._remove_stale(holders, keep=name)
            # From now on, not from when it is written: another start, which asked kubelet before
            # this one was listed, may clean up in between.
            self._written_at_s[name] = self._clock.monotonic()
            for folder in stores:
                # A folder on a slow disk must not hold up the other starts.
                await asyncio.to_thread(folder.write, spec)
        except CdiError as error:
            raise self._refusal("cdi_folder", str(error)) from error
        # What was just written for the old holder is overwritten before the new one's start.
        if self._memory.turn(slot_ids) != turn:
            raise self._refusal("handed_on", _HANDED_ON)
        self._memory.verified(slot_ids, pod_uid=answer.pod.record.uid)
        self._written_at_s[name] = self._clock.monotonic()
        return answer

    async def clean(self) -> None:
        """Remove specs whose slots nobody holds; done at start and before each write."""
        try:
            self._remove_stale(await self._pod_resources.holders())
        except (PodResourcesError, CdiError) as error:
            # Nothing can go wrong with a leftover: PreStart overwrites it before every use.
            log.warning("stale_specs_kept", reason=str(error))

    def _remove_stale(self, holders: Iterable[SlotHolder], *, keep: str = "") -> None:
        now_s = self._clock.monotonic()
        fresh = {it for it, at_s in self._written_at_s.items() if now_s - at_s < _FRESH_S}
        held = {device_name(it.slot_ids) for it in holders}
        for folder in self._places.folders:
            for name in sorted(folder.names() - held - fresh - {keep}):
                folder.remove(name)
                self._written_at_s.pop(name, None)
                log.info("stale_spec_removed", device=name)

    async def _pods_of(
        self, slot_ids: frozenset[str], holders: Iterable[SlotHolder]
    ) -> Mapping[PodKey, PodInfo]:
        known = self._pods()
        if known is None:
            raise self._refusal("pods_unknown", "this node's pods have not been listed yet")
        pods = dict(known)
        keys = {it.key for it in holders if it.slot_ids & slot_ids}
        token = self._memory.token(slot_ids)
        if token:
            keys |= {key for key, pod in known.items() if _carries(pod, token)}
        for key in sorted(keys):
            pod = await self._pod(key, known.get(key), self._memory.owner_uid(slot_ids))
            if pod is None:
                pods.pop(key, None)
            else:
                pods[key] = pod
        return pods

    async def _pod(self, key: PodKey, known: PodInfo | None, owner_uid: str) -> PodInfo | None:
        """Read a pod afresh; while the API server is away, a pod verified before must do.

        What the informer last saw would not do for a new one: a pod deleted and re-created under
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
                f"before waits for the API server: {str(error) or limit}"
            )
            raise self._refusal("api_silent", text) from error

    def _refusal(self, outcome: str, text: str) -> PreStartError:
        self._metrics.started(outcome)
        return PreStartError(text)


def _carries(pod: PodInfo, token: str) -> bool:
    return any(token in text for text in pod.waiting.values())
