"""Makes the claims of pods, while this replica leads: what a pod names does not exist before.

kube-scheduler does not try a pod whose claim does not exist. We create the claim with a shortlist
of cards and kube-scheduler takes one of them: it allocates, so nothing is overbooked whatever we
know. Where no card fits the claim is left open, so that kube-scheduler says so in the pod's status,
and autoscalers see it. A list of which kube-scheduler can take no card is replaced, a few times at
most; then the claim is left open as well.

A write without an answer is tried again: the name of the claim is the pod's own, so there is never
a second one, and the UID and version that a deletion names are those that we have observed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import structlog

from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.claims import claim_of
from fracgpu.errors import RequestError
from fracgpu.state.pod_info import PodInfo
from kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
)
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS, RESOURCE_CLAIMS, Kind
from kube.retry import RetryPolicy
from process.clock import Clock
from scheduler.claims.cache import ClaimCache, ObservedPod, UnboundPod, uid_of
from scheduler.claims.planner import ClaimPlanner, Plan, why_no_claim
from scheduler.metrics import ClaimOutcome

log = structlog.get_logger()

_AT_ONCE: Final = 16  # writes
_TICK_S: Final = 0.25
_LOOK_S: Final = 2.0  # between two looks for what no event has told
_SWEEP_S: Final = 30.0  # between two looks for claims whose pod is gone
_LOOKED_AT_AT_ONCE: Final = 1_000  # claims or pods; about a millisecond
_RETRY: Final = RetryPolicy(first_pause_s=0.2, longest_pause_s=10.0)
# How long kube-scheduler has to try a list that replaced another: its own pause between two tries
# of a pod is 1 s at first and 10 s at last.
_TRIES: Final = RetryPolicy(first_pause_s=2.0, longest_pause_s=15.0)
_MOST_LISTS: Final = 5  # of a pod; then its claim is left open
_EVENT_AGAIN_S: Final = 60.0


class EventReason(Enum):
    """The reasons of our Events."""

    WAITING = "WaitingForCard"
    NO_CLAIM = "NoClaim"


class ClaimWriter(Protocol):
    """What the controller needs of the API server."""

    async def create(
        self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        version: str = "",
    ) -> None: ...


@dataclass(slots=True)
class _Progress:
    """What was done for one pod.

    Attributes:
        made: the UID of the claim that we created last, until it is observed.
        made_at_s: when.
        lists: how many shortlists it was given.
        refused: nodes that were listed, and that kube-scheduler refuses for more than cards.
        failures: in a row.
        due_s: when it is looked at again; None for when something changes.
        told: the last Event, and when it was written.
    """

    made: str = ""
    made_at_s: float = 0.0
    lists: int = 0
    refused: set[str] = field(default_factory=set)
    failures: int = 0
    due_s: float | None = None
    told: tuple[str, float] = ("", 0.0)


class ClaimController:
    """Creates, replaces and removes claims.

    Args:
        api: writes claims.
        cache: pods and claims as observed; calls :meth:`note` for what is due.
        planner: chooses the cards.
        find: returns the informer's copy of a pod by namespace and name.
        leads: whether this replica may write.
        recorder: writes Events on pods.
        clock: paces everything.
        limit_s: timeout of one request to the API server.
        on_outcome: counts the outcomes.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: ClaimWriter,
        cache: ClaimCache,
        planner: ClaimPlanner,
        *,
        find: Callable[[str, str], ObservedPod | None],
        leads: Callable[[], bool],
        recorder: EventRecorder,
        clock: Clock,
        limit_s: float,
        on_outcome: Callable[[ClaimOutcome], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._planner = planner
        self._find = find
        self._leads = leads
        self._recorder = recorder
        self._clock = clock
        self._limit_s = limit_s
        self._on_outcome = on_outcome
        self._progress: dict[str, _Progress] = {}
        self._due: dict[str, None] = {}
        self._wanted = asyncio.Event()
        self._busy: set[str] = set()
        self._events: dict[str, tuple[PodInfo, EventReason, str]] = {}
        self._event_wanted = asyncio.Event()

    def note(self, uid: str) -> None:
        """Look at a pod soon, once however often this is called until then."""
        self._due[uid] = None
        self._wanted.set()

    async def run(self) -> None:
        """Follow the cache until cancelled; call it once all lists are read."""
        for uid in self._cache.pods:
            self._cache.count_first_choice(uid)
            self.note(uid)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dispatch(), name="claims")
            group.create_task(self._write_events(), name="events of claims")
            group.create_task(self._periodically(_TICK_S, self._tick), name="claims due")
            group.create_task(self._periodically(_LOOK_S, self._look), name="claims overlooked")
            group.create_task(self._periodically(_SWEEP_S, self.sweep), name="claims left over")

    async def _periodically(
        self, every_s: float, step: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            await self._clock.sleep(every_s)
            await step()

    async def _tick(self) -> None:
        now_s = self._clock.monotonic()
        for uid, progress in self._progress.items():
            if progress.due_s is not None and progress.due_s <= now_s:
                progress.due_s = None
                self.note(uid)

    async def _look(self) -> None:
        for uid in self._progress.keys() - self._cache.pods.keys() - self._busy:
            del self._progress[uid]
        for at, (uid, pod) in enumerate(tuple(self._cache.pods.items())):
            if at % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
                await self._clock.sleep(0)
            claim = self._cache.claim_of(pod)
            if (
                claim is None
                or (not claim.allocated and not claim.open)
                or self._planner.held(pod, without=()) is not None
            ):
                self.note(uid)

    # -- one pod ---------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def handle(uid: str) -> None:
            try:
                await self.handle(uid)
            finally:
                self._busy.discard(uid)
                slots.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                uid = next((uid for uid in self._due if uid not in self._busy), None)
                if uid is None:
                    slots.release()
                    self._wanted.clear()
                    await self._wanted.wait()
                    continue
                del self._due[uid]
                self._busy.add(uid)
                group.create_task(handle(uid), name=f"claim of pod {uid}")

    async def handle(self, uid: str) -> None:
        """Do what is due for one pod."""
        pod = self._cache.pods.get(uid)
        if pod is None or pod.info.gated or not self._leads():
            return
        progress = self._progress.setdefault(uid, _Progress())
        claim = self._cache.claim_of(pod)
        if self._awaits_own(progress, claim):
            return
        if claim is None:
            if progress.due_s is None:  # else it has failed, and waits
                await self._create(pod, progress)
        elif claim.holder != uid:
            why = (
                f"claim {claim.name} was made by somebody else under the name that this pod was "
                "given; its containers will not start: delete claim and pod"
            )
            if self._tell(pod.info, EventReason.NO_CLAIM, why):
                self._on_outcome(ClaimOutcome.TAKEN)
        elif not claim.allocated and not claim.terminating:
            await self._follow_up(pod, claim, progress)

    async def _follow_up(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        """Do what is due for a claim of ours that kube-scheduler has not allocated yet."""
        held = self._planner.held(pod, without=progress.refused)
        if held is not None and not claim.tolerated.issuperset(held.tolerated):
            await self._replace(pod, claim, progress)
        elif self._is_refused(pod, claim, progress):
            self._note_refused(pod, claim, progress)
            await self._replace(pod, claim, progress)
        elif claim.open and not self._cache.is_explained(uid_of(pod)):  # by the leader before
            self._cache.explain(pod, self._planner.plan(pod).why)

    def _awaits_own(self, progress: _Progress, claim: DeviceClaim | None) -> bool:
        """Report whether the claim that we made last is not observed yet."""
        if progress.made and (claim is None or claim.uid != progress.made):
            if self._clock.monotonic() - progress.made_at_s < self._limit_s:
                return True
            progress.made = ""
        return False

    def _is_refused(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> bool:
        """Report whether kube-scheduler has tried the list, and can take none of it."""
        if claim.open or pod.info.unschedulable_since is None:
            return False
        # The condition may still be that of the list before.
        tried_s = _TRIES.pause_s(progress.lists - 1) if progress.lists > 1 else 0.0
        if self._clock.monotonic() - progress.made_at_s >= tried_s:
            return True
        progress.due_s = progress.made_at_s + tried_s
        return False

    async def _create(self, pod: UnboundPod, progress: _Progress) -> None:
        why = why_no_claim(pod.info)
        if why:
            if self._tell(pod.info, EventReason.NO_CLAIM, f"no claim can be made: {why}"):
                self._on_outcome(ClaimOutcome.REFUSED)
            return
        plan = self._plan(pod, progress)
        await self._write(pod, plan, progress)

    def _plan(self, pod: UnboundPod, progress: _Progress) -> Plan:
        """Return what the claim is to list, and count the best of it for the pod at once."""
        self._forget(pod)
        plan = self._planner.plan(pod, without=progress.refused)
        if progress.lists >= _MOST_LISTS and not plan.tolerated:
            plan = Plan(choice={}, cards=None, why="kube-scheduler takes none of the best cards")
        # There must be no await since the choice, or another pod could be given the same MiB.
        if plan.nodes:
            self._cache.assume(pod, plan.nodes[0], plan.choice, move=plan.move)
        return plan

    async def _write(self, pod: UnboundPod, plan: Plan, progress: _Progress) -> None:
        info, need = pod.info, pod.info.need
        assert need is not None, "a pod that is planned for has a need"  # noqa: S101
        record = info.record
        try:
            body = claim_of(
                record,
                info.device_claim,
                need,
                plan.cards,
                card_class=info.card_class,
                tolerated=plan.tolerated,
            )
            async with asyncio.timeout(self._limit_s):
                created = await self._api.create(RESOURCE_CLAIMS, body, namespace=record.namespace)
        except AlreadyExists:
            # An earlier answer was lost, or somebody was faster: the informer will show which.
            self._retry(progress)
        except (RequestError, Forbidden, Invalid, NotFound) as error:
            self._forget(pod)
            self._failed(pod, progress, error)
        except (KubeError, TimeoutError) as error:
            # It may exist, so its cards go on counting.
            self._failed(pod, progress, error)
        else:
            progress.made = created["metadata"]["uid"]
            progress.made_at_s = self._clock.monotonic()
            progress.failures = 0
            progress.lists += plan.cards is not None
            self._on_outcome(ClaimOutcome.OPEN if plan.cards is None else ClaimOutcome.LISTED)
            log.info("claim_created", pod=record.key, claim=info.device_claim, nodes=plan.nodes)
            if plan.why:
                self._cache.explain(pod, plan.why)
                self._tell(info, EventReason.WAITING, f"waiting for a card: {plan.why}")

    def _note_refused(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        # What fits and was listed is refused for something else, such as affinity to other pods.
        self._forget(pod)
        listed = self._cache.nodes_of(claim)
        progress.refused |= listed.intersection(self._planner.plan(pod).nodes)

    async def _replace(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        """Delete a claim that nothing was allocated for, and make another."""
        self._forget(pod)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._api.delete(
                    RESOURCE_CLAIMS,
                    claim.name,
                    namespace=claim.namespace,
                    uid=claim.uid,
                    version=claim.resource_version,
                )
        except NotFound:
            pass
        except Conflict:  # it was allocated, or has changed: that will be observed
            self._cache.count_first_choice(uid_of(pod))
            self._retry(progress)
            return
        except (KubeError, TimeoutError) as error:
            self._cache.count_first_choice(uid_of(pod))
            self._failed(pod, progress, error)
            return
        self._on_outcome(ClaimOutcome.REPLACED)
        now = self._cache.pods.get(uid_of(pod))
        if now is not None and self._leads():
            await self._create(now, progress)

    def _forget(self, pod: UnboundPod) -> None:
        self._cache.forget(uid_of(pod))

    def _retry(self, progress: _Progress) -> None:
        progress.failures += 1
        progress.due_s = self._clock.monotonic() + _RETRY.pause_s(progress.failures)

    def _failed(self, pod: UnboundPod, progress: _Progress, error: Exception) -> None:
        self._retry(progress)
        if isinstance(error, TooManyRequests) and error.retry_after_s is not None:
            assert progress.due_s is not None, "it is tried again"  # noqa: S101
            progress.due_s += min(error.retry_after_s, _RETRY.longest_pause_s)
        why = str(error) or f"no answer within {self._limit_s:g} s"
        self._on_outcome(ClaimOutcome.FAILED)
        log.warning("claim_not_written", pod=pod.info.record.key, error=why)
        self._tell(pod.info, EventReason.NO_CLAIM, f"the claim could not be written: {why}")

    # -- what is left over -----------------------------------------------------------------------

    async def sweep(self) -> None:
        """Remove the claims that we made for pods which are gone, or have ended."""
        left: list[DeviceClaim] = []
        for at, claim in enumerate(tuple(self._cache.claims.values())):
            if at % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
                await self._clock.sleep(0)
            if claim.managed and claim.owner is not None and not claim.terminating:
                pod = self._find(claim.namespace, claim.owner.name)
                if (pod is None or uid_of(pod) != claim.owner.uid) and self._is_old(claim):
                    left.append(claim)
        for claim in left:
            if self._leads():
                await self._remove(claim)

    def _is_old(self, claim: DeviceClaim) -> bool:
        """Report whether whoever removes claims by their owners has had time to."""
        made = claim.created_at
        return made is None or (self._clock.now() - made).total_seconds() >= _SWEEP_S

    async def _remove(self, claim: DeviceClaim) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await self._api.delete(
                    RESOURCE_CLAIMS, claim.name, namespace=claim.namespace, uid=claim.uid
                )
        except (KubeError, TimeoutError) as error:
            log.info("claim_not_removed", claim=claim.key, error=str(error))
        else:
            self._on_outcome(ClaimOutcome.REMOVED)
            log.info("claim_removed", claim=claim.key)

    # -- Events ----------------------------------------------------------------------------------

    def _tell(self, pod: PodInfo, reason: EventReason, note: str) -> bool:
        """Write an Event on a pod, unless it has the same one, or one of late; report whether."""
        progress = self._progress.setdefault(pod.record.uid, _Progress())
        now_s = self._clock.monotonic()
        told, told_s = progress.told
        if told and (told == note or now_s - told_s < _EVENT_AGAIN_S):
            return False
        progress.told = (note, now_s)
        self._events[pod.record.uid] = (pod, reason, note)
        self._event_wanted.set()
        return True

    async def _write_events(self) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def write(pod: PodInfo, reason: EventReason, note: str) -> None:
            try:
                where = Regarding(
                    kind=PODS,
                    name=pod.record.name,
                    namespace=pod.record.namespace,
                    uid=pod.record.uid,
                )
                level = EventLevel.NORMAL if reason is EventReason.WAITING else EventLevel.WARNING
                await self._recorder.emit(where, reason=reason.value, note=note, level=level)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await self._event_wanted.wait()
                self._event_wanted.clear()
                while self._events:
                    await slots.acquire()
                    uid = next(iter(self._events))
                    group.create_task(write(*self._events.pop(uid)), name=f"event of pod {uid}")
