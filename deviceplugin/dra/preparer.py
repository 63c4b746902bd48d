"""What kubelet asks of a claim before its pod's containers start: to have ready what they get."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import structlog

from deviceplugin.claims import Claim
from deviceplugin.container.cdi import (
    CdiError,
    CdiFolder,
    CdiSpec,
    closed_spec,
    qualified_name,
    refusing_spec,
)
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.dra.held_claims import HeldClaim, HeldClaims
from deviceplugin.dra.server import ClaimName, Claims, PreparedDevice, PrepareError
from deviceplugin.enforcement.interface import EnforcementError
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.enforcement.promises import chosen_isolation
from deviceplugin.identity.starts import wired
from deviceplugin.kubelet.pre_start import Runtime
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import Inventory, InventoryTracker
from fracgpu import names
from fracgpu.cards.card import Health
from fracgpu.device_claims.claim import DeviceClaim, assignment_of, decode_claim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.preparation import why_not_prepared
from fracgpu.errors import WireError
from fracgpu.request.language import wanted_isolation
from fracgpu.request.need import MECHANISMS, Isolation
from fracgpu.state.claim_use import ClaimUse
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.resize import isolation_of
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import RESOURCE_CLAIMS
from process.clock import Clock, wait_at_most

_T = TypeVar("_T", DeviceClaim, tuple[PodInfo, ClaimUse])

log = structlog.get_logger()

# Kubelet waits 45 s for an answer, and asks again only a minute after a refusal. So what comes soon
# is waited for: the pod in our copy, the last pod's end, the API server.
_LONGEST_WAIT_S: Final = 25.0
_POLL_S: Final = 0.1
_PAUSE_S: Final = 1.0
# The longest time between two comparisons of the specs without any event, and while one refuses its
# container, or cannot be written. Of 256 claims a comparison takes a tenth of a second.
_CALM_S: Final = 60.0
_REFUSING_S: Final = 10.0


class _RefusedError(PrepareError):
    """A claim that cannot be prepared; *outcome* is how the start is counted."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Preparer(Claims):
    """Writes a CDI spec for each request of a claim: of ours, the container's of that name.

    A spec's name has the claim's UID, which no other claim will ever have. So the runtime cannot
    give it to another pod, whatever it has cached, and what is left of it is found without memory.

    Kubelet does not ask again for a container that restarts: the runtime makes it of the spec that
    is there. So a spec is kept what it would be now, and marked: a card that was bound to its
    driver anew may have the device file that was another's.

    Args:
        node: this node's name.
        client: reads claims.
        held: what this node's pods hold.
        held_by_slots: which pods hold cards that no claim counts, or None.
        pods: this node's pods by UID; None until they and their claims are known.
        tracker: the node's inventory.
        runtime: whether the runtime reads CDI specs.
        builder: builds what a container gets.
        limiter: limits what it uses.
        why_not_limited: why the limiter cannot limit containers on this node, or None.
        specs: the runtime's CDI folder.
        clock: for durations.
        metrics: counts starts by outcome.
        on_prepared: called with the claim of each container that may start, and what enforces its
            share.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        client: KubeClient,
        held: HeldClaims,
        held_by_slots: Callable[[], str | None],
        pods: Callable[[], Mapping[str, PodInfo] | None],
        tracker: InventoryTracker,
        runtime: Runtime,
        builder: ContainerSpecBuilder,
        limiter: Limiter,
        why_not_limited: Callable[[], str | None],
        specs: CdiFolder,
        clock: Clock,
        metrics: DevicePluginMetrics,
        on_prepared: Callable[[Claim, str], None],
    ) -> None:
        self._node = node
        self._client = client
        self._held = held
        self._held_by_slots = held_by_slots
        self._pods = pods
        self._tracker = tracker
        self._runtime = runtime
        self._builder = builder
        self._limiter = limiter
        self._why_not_limited = why_not_limited
        self._specs = specs
        self._clock = clock
        self._metrics = metrics
        self._on_prepared = on_prepared
        self._wake = asyncio.Event()
        self._problems: list[str] = []
        self._removing = asyncio.Lock()  # so that nothing is written for a claim given back

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        began_s = self._clock.monotonic()
        try:
            await self._check_runtime()
            end_s = began_s + _LONGEST_WAIT_S
            found = await self._read(claim, end_s=end_s)
            pod, use = await self._checked(found, end_s=end_s)
            return await self._hand_over(found, pod, use)
        except _RefusedError as error:
            self._metrics.started(error.outcome)
            log.warning("claim_refused", claim=claim.name, uid=claim.uid, reason=str(error))
            raise
        finally:
            self._metrics.start_took(self._clock.monotonic() - began_s)

    async def _check_runtime(self) -> None:
        if (problem := await self._runtime.check()) is not None:
            raise _RefusedError("runtime_unknown", problem)

    async def unprepare(self, claim: ClaimName) -> None:
        """Remove a claim's specs; kubelet also asks for claims that are gone, by their UID."""
        async with self._removing:
            try:
                removed = await asyncio.to_thread(self._remove_specs, claim.uid)
            except CdiError as error:
                raise PrepareError(str(error)) from error
            self._held.remove(claim.uid)
        log.info("claim_unprepared", claim=claim.name, uid=claim.uid, specs=removed)

    def _remove_specs(self, uid: str) -> list[str]:
        found = sorted(name for name in self._specs.names() if name.startswith(f"{uid}_"))
        for name in found:
            self._specs.remove(name)
        return found

    async def run(self) -> None:
        """Keep the specs of held claims what they would be now, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tracker.follow(self._wake.set), name="follow_cards")
            while True:
                self._wake.clear()
                calm = await self.renew()
                limit_s = _PAUSE_S if self._pods() is None else _CALM_S if calm else _REFUSING_S
                await wait_at_most(self._clock, self._wake, limit_s=limit_s)

    async def renew(self) -> bool:
        """Write the specs anew that would be others now; return False to be called again soon.

        One whose container may not have its cards now refuses it by a file that does not exist,
        whose name says why.
        """
        pods = self._pods()
        if pods is None or self._tracker.unseen is not None:
            return False
        problems: list[str] = []
        done = await self._renew_all(pods, problems)
        if problems and not self._problems:
            log.warning("specs_not_renewed", specs=len(problems), reason=problems[0])
        self._problems = problems
        return done and not problems

    async def _renew_all(self, pods: Mapping[str, PodInfo], problems: list[str]) -> bool:
        try:
            there = await asyncio.to_thread(self._specs.names)
        except CdiError as error:
            problems.append(str(error))
            return False
        done = True
        for held in self._held.all:
            pod = pods.get(held.pod)
            if pod is None or not pod.record.live:
                continue
            async with self._removing:
                if self._held.has(held.claim.uid):
                    mine = {name for name in there if name.startswith(f"{held.claim.uid}_")}
                    try:
                        done = await self._renew(held, pod, mine) and done
                    except CdiError as error:
                        problems.append(str(error))
        return done

    async def _renew(self, held: HeldClaim, pod: PodInfo, there: Collection[str]) -> bool:
        """Return False if a spec refuses its container."""
        # What was removed with the folder is written again, if kubelet had asked for it.
        asked = held.prepared or names.WIRED in pod.annotations
        try:
            await self._renew_each(held, pod, None if asked else there)
        except (WireError, _RefusedError) as error:
            await self._close(there, str(error))
            return False
        return True

    async def _close(self, specs: Iterable[str], reason: str) -> None:
        for name in specs:
            by_nri = await asyncio.to_thread(self._specs.has, closed_spec(name))
            spec = refusing_spec(name, reason)
            if not by_nri and await self._replace(spec):
                log.warning("spec_closed", device=name, reason=reason)

    async def _replace(self, spec: CdiSpec) -> bool:
        """Write a spec and return whether it is another one; without room for it there is none."""
        try:
            return await asyncio.to_thread(self._specs.write, spec)
        except CdiError:
            # The runtime refuses a container without its spec; the old one may give another card.
            await asyncio.to_thread(self._specs.remove, spec.name)
            raise

    async def _renew_each(
        self, held: HeldClaim, pod: PodInfo, only: Collection[str] | None
    ) -> None:
        inventory = self._tracker.inventory
        for name, own in self._outfits(held.claim, pod, held.use, inventory).items():
            # The runtime asks for this one by NRI, and is answered by what is true then.
            by_nri = await asyncio.to_thread(self._specs.has, closed_spec(name))
            if by_nri or (only is not None and name not in only):
                continue
            # What limits the container stays what its pod was told.
            noted = (isolation_of(pod.annotations) or {}).get(own.container, "")
            spec, isolation = await self._spec(name, own, inventory, noted=noted)
            if await self._replace(spec):
                log.info("spec_renewed", **wired(own, isolation.value), device=name)
                if not noted:
                    self._on_prepared(own, isolation.value)

    async def _read(self, claim: ClaimName, *, end_s: float) -> DeviceClaim:
        """Return a claim as the API server has it."""

        async def read() -> DeviceClaim | str:
            try:
                body = await self._client.get(
                    RESOURCE_CLAIMS, claim.name, namespace=claim.namespace
                )
                found = decode_claim(body)
            except NotFound:
                raise _RefusedError("claim_gone", f"claim {claim.name} is gone") from None
            except KubeError as error:
                return f"claim {claim.name} cannot be read: {error}"
            except WireError as error:
                raise _RefusedError("claim_unreadable", str(error)) from error
            if found.uid != claim.uid:
                text = f"claim {claim.name} is another one now, with UID {found.uid}"
                raise _RefusedError("claim_gone", text)
            return found

        return await self._at_last(read, "api_unreachable", pause_s=_PAUSE_S, end_s=end_s)

    async def _checked(self, claim: DeviceClaim, *, end_s: float) -> tuple[PodInfo, ClaimUse]:
        """Return the pod of a claim that may be prepared, which counts from now on."""

        async def check() -> tuple[PodInfo, ClaimUse] | str:
            pods = self._pods()
            if pods is None:
                return "this node's pods and their claims are not all known yet"
            if (problem := self._tracker.unseen) is not None:
                return problem
            pod = next((pods[user.uid] for user in claim.reserved_for if user.uid in pods), None)
            why = self._why_not_yet(claim, pod)
            if why and pod is not None and (always := self._why_not(claim, pod, ())):
                raise _RefusedError("claim_refused", always)
            if why or pod is None:
                return why or f"the pod of claim {claim.name} is not known yet"
            use = pod.claim_uses.get(claim.name)
            if use is None:
                text = f"pod {pod.record.name} does not name claim {claim.name}"
                raise _RefusedError("claim_refused", text)
            self._held.add(HeldClaim(claim=claim, pod=pod.record.uid, use=use))
            return pod, use

        return await self._at_last(check, "claim_refused", pause_s=_POLL_S, end_s=end_s)

    async def _at_last(
        self,
        attempt: Callable[[], Awaitable[_T | str]],
        outcome: str,
        *,
        pause_s: float,
        end_s: float,
    ) -> _T:
        """Return what *attempt* does, once it is no text that says why there is nothing yet."""
        while isinstance(found := await attempt(), str):
            if self._clock.monotonic() >= end_s:
                raise _RefusedError(outcome, found)
            await self._clock.sleep(pause_s)
        return found

    def _why_not_yet(self, claim: DeviceClaim, pod: PodInfo | None) -> str:
        """Return why a claim may not be prepared beside what this node's pods hold."""
        return self._why_not(claim, pod, self._held.claims) or self._held_by_slots() or ""

    def _why_not(
        self, claim: DeviceClaim, pod: PodInfo | None, prepared: Iterable[DeviceClaim]
    ) -> str:
        cards = self._tracker.inventory.cards
        return why_not_prepared(claim, pod, node=self._node, cards=cards, prepared=prepared)

    async def _hand_over(
        self, claim: DeviceClaim, pod: PodInfo, use: ClaimUse
    ) -> Sequence[PreparedDevice]:
        try:
            await self._write_specs(claim, pod, use)
        except (WireError, PrepareError) as error:
            self._held.remove(claim.uid)
            if isinstance(error, PrepareError):
                raise
            raise _RefusedError("claim_unreadable", str(error)) from error
        return _answer(claim)

    async def _write_specs(self, claim: DeviceClaim, pod: PodInfo, use: ClaimUse) -> None:
        """Write a spec for each request, which is that of one container, or of several.

        Raises:
            WireError: a device is no card of this node.
            PrepareError: a container cannot have what it was allocated.
        """
        inventory = self._tracker.inventory  # once: it may have other cards a moment later
        outfits = self._outfits(claim, pod, use, inventory)
        others = [one.name for one in self._held.of_pod(pod.record.uid) if one.uid != claim.uid]
        if others:
            text = (
                f"pod {pod.record.name} has cards of claims {claim.name} and {others[0]}: want one"
            )
            raise _RefusedError("claim_refused", text)
        for name, own in outfits.items():
            spec, isolation = await self._spec(name, own, inventory)
            try:
                await asyncio.to_thread(self._specs.write, spec)
            except CdiError as error:
                raise _RefusedError("cdi_folder", str(error)) from error
            self._metrics.started("wired")
            log.info("container_wired", **wired(own, isolation.value), device=name)
            self._on_prepared(own, isolation.value)

    def _outfits(
        self, claim: DeviceClaim, pod: PodInfo, use: ClaimUse, inventory: Inventory
    ) -> Mapping[str, Claim]:
        """Return what each request is for, by the name of its spec.

        Raises:
            WireError: a device is no card of this node.
            PrepareError: a container has several requests.
        """
        cards = inventory.by_uuid()
        by_request = assignment_of(claim, cards_by_device(cards))
        if several := use.ambiguous(by_request):
            text = f"container {several} has several requests of claim {claim.name}: name one"
            raise _RefusedError("claim_refused", text)
        return {
            f"{claim.uid}_{request}": Claim(
                pod=pod,
                container=next(iter(use.containers_of(request)), request),
                slices=slices,
                cards=tuple(cards[part.card] for part in slices),
            )
            for request, slices in by_request.items()
        }

    async def _spec(
        self, name: str, claim: Claim, inventory: Inventory, *, noted: str = ""
    ) -> tuple[CdiSpec, Isolation]:
        """Return what a container is to get now, and what limits it.

        Args:
            name: of the spec.
            claim: whose container it is.
            inventory: the node's cards.
            noted: what has limited it until now: if a mechanism, by no other.

        Raises:
            PrepareError: it cannot have its cards now.
        """
        for card in claim.cards:
            if card.health is not Health.HEALTHY:
                text = f"card {card.uuid} is unhealthy: {card.health_reason}"
                raise _RefusedError("card_unhealthy", text)
        kept = tuple(each for each in MECHANISMS if each.value == noted)
        by = chosen_isolation(
            kept or wanted_isolation(claim.pod.annotations),
            lambda each: self._unable(each, claim, inventory),
        )
        try:
            spec = await asyncio.to_thread(self._builder.build, name, claim, inventory, by=by)
            return self._limited(self._specs.marked(spec), claim, by)
        except SpecBuildError as error:
            raise _RefusedError("no_outfit", str(error)) from error
        except EnforcementError as error:
            raise _RefusedError("limit_not_proved", str(error)) from error

    def _limited(self, spec: CdiSpec, claim: Claim, by: Isolation) -> tuple[CdiSpec, Isolation]:
        """Return *spec* such that its container is created only with the limits it is promised.

        Raises:
            EnforcementError: it cannot be limited as its pod wants.
        """
        if by not in (Isolation.KERNEL, Isolation.BEST):
            return spec, by
        if self._why_not_limited() is not None:
            if by is Isolation.KERNEL:
                raise EnforcementError(f"the pod wants {by.value}: {self._why_not_limited()}")
            return spec, Isolation.NONE
        promised, isolation = self._limiter.promise(claim.pod, claim.slices)
        if promised:
            # The runtime asks us by NRI, and our answer gives the cards, and sets the limits.
            spec = closed_spec(spec.name)
        return spec, isolation

    def _unable(self, isolation: Isolation, claim: Claim, inventory: Inventory) -> str | None:
        if isolation is not Isolation.KERNEL:
            return self._builder.why_not(isolation, inventory.hardware(claim.cards))
        return self._why_not_limited() or self._limiter.why_not_all(claim.slices)


def _answer(claim: DeviceClaim) -> Sequence[PreparedDevice]:
    """Return the devices for kubelet: the spec of a request with its first card.

    With each card it would be the same spec several times, which not every runtime applies once.
    """
    specs = {one.request: qualified_name(f"{claim.uid}_{one.request}") for one in claim.devices}
    return [
        PreparedDevice(
            request=one.request,
            pool=one.node,
            device=one.device,
            cdi=(specs.pop(one.request),) if one.request in specs else (),
        )
        for one in claim.devices
    ]
