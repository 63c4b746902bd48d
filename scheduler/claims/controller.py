"""Makes the claims of pods, while this replica leads: what a pod names does not exist before.

kube-scheduler does not try a pod whose claim does not exist. We create the claim with a shortlist
of cards and kube-scheduler takes one of them: it allocates, so nothing is overbooked whatever we
know. Where no card fits the claim is left open, so that kube-scheduler says so in the pod's status,
and autoscalers see it. A list of which kube-scheduler can take no card is replaced, a few times at
most; then the claim is left open as well.

Where pods of lower priority hold the cards, see `preemption.py`.

A write without an answer is tried again: the name of the claim is the pod's own, so there is never
a second one, and the UID and version that a deletion names are those that we have observed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Final, Protocol

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.holders import describe_claim
from fracgpu.errors import RequestError
from fracgpu.state.allocation import PodRecord
from fracgpu.state.bound_pod import BoundPod
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
from kube.kinds import RESOURCE_CLAIMS, Kind
from kube.retry import RetryPolicy
from process.clock import Clock
from scheduler.claims.cache import ClaimCache, ObservedPod, UnboundPod, uid_of
from scheduler.claims.gangs import Because, ClaimGangs, Withheld
from scheduler.claims.planner import ClaimPlanner, Plan, why_no_claim
from scheduler.claims.preemption import Kept, Preemption, Preemptions
from scheduler.claims.quota import ClaimQuota
from scheduler.metrics import ClaimOutcome, RequestActivity

log = structlog.get_logger()

_AT_ONCE: Final = 32  # writes of claims, and of Events
_HANDLED_AT_ONCE: Final = 128  # pods; those beyond the writes are planned for, and told, meanwhile
_TICK_S: Final = 0.25
_LOOK_S: Final = 2.0  # between two looks for what no event has told
_SWEEP_S: Final = 30.0  # between two looks for claims whose pod is gone
_LOOKED_AT_AT_ONCE: Final = 1_000  # claims or pods; about a millisecond
_RETRY: Final = RetryPolicy(first_pause_s=0.2, longest_pause_s=10.0)
# How long kube-scheduler has to try a list that replaced another: its own pause between two tries
# of a pod is 1 s at first and 10 s at last.
_TRIES: Final = RetryPolicy(first_pause_s=2.0, longest_pause_s=15.0)
_MOST_LISTS: Final = 5  # of a pod; then its claim is left open
# Between two looks for victims for a pod whose claim is open.
_VICTIMS: Final = RetryPolicy(first_pause_s=2.0, longest_pause_s=30.0)
_EVENT_AGAIN_S: Final = 60.0


class EventReason(Enum):
    """The reasons of our Events."""

    WAITING = "WaitingForCard"
    NO_CLAIM = "NoClaim"
    PREEMPTED = "Preempted"  # as kube-scheduler calls it
    QUOTA = "ExceededQuota"
    GANG = "WaitingForGang"


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
        claims: how many were made for it.
        lists: how many shortlists it was given.
        refused: nodes that were listed, and that kube-scheduler refuses for more than cards.
        planned: the number of the last preemption when its claim was planned.
        not_taken: the node where cards were freed for it that kube-scheduler did not take; nobody
            else is evicted for it then. Empty while there is none, and once it was allocated any.
        searches: how often no victims were found for it, and when they are looked for again.
        failures: in a row.
        retry_s: before which nothing is written for it, after a failure.
        due_s: when it is looked at again; None for when something changes.
        reported: the last Event of each reason, and when it was written.
        why: why it has no claim, or an open one; the newest, whether an Event says it or not.
    """

    made: str = ""
    made_at_s: float = 0.0
    claims: int = 0
    lists: int = 0
    refused: set[str] = field(default_factory=set)
    planned: int = 0
    not_taken: str = ""
    searches: tuple[int, float] = (0, 0.0)
    failures: int = 0
    retry_s: float = 0.0
    due_s: float | None = None
    reported: dict[EventReason, tuple[str, float]] = field(default_factory=dict)
    why: str = ""


class ClaimController:
    """Creates, replaces and removes claims.

    Args:
        api: writes claims.
        cache: pods and claims as observed; calls :meth:`note` for what is due.
        planner: chooses the cards.
        preemptions: chooses who leaves them, and from whom they are kept.
        quota: says which claims may be made.
        gangs: says which have to wait for those of other pods.
        find: returns the informer's copy of a pod by namespace and name.
        leads: whether this replica may write.
        recorder: writes Events on pods.
        clock: paces everything.
        limit_s: timeout of one request to the API server.
        activity: counts the pods that are handled.
        on_outcome: counts the outcomes.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: ClaimWriter,
        cache: ClaimCache,
        planner: ClaimPlanner,
        preemptions: Preemptions,
        quota: ClaimQuota,
        gangs: ClaimGangs,
        *,
        find: Callable[[str, str], ObservedPod | None],
        leads: Callable[[], bool],
        recorder: EventRecorder,
        clock: Clock,
        limit_s: float,
        activity: RequestActivity | None = None,
        on_outcome: Callable[[ClaimOutcome], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._planner = planner
        self._preemptions = preemptions
        self._quota = quota
        self._gangs = gangs
        self._find = find
        self._leads = leads
        self._recorder = recorder
        self._clock = clock
        self._limit_s = limit_s
        self._activity = activity or RequestActivity()
        self._on_outcome = on_outcome
        self._writes = asyncio.Semaphore(_AT_ONCE)
        self._progress: dict[str, _Progress] = {}
        self._due: set[str] = set()
        self._queue: list[tuple[int, bool, str, str]] = []
        self._wanted = asyncio.Event()
        self._busy: set[str] = set()
        self._again: set[str] = set()  # those of the busy that are due again
        self._left: Set[str] = frozenset()  # UIDs of claims
        self._events: dict[tuple[str, EventReason], tuple[Regarding, str]] = {}
        self._event_wanted = asyncio.Event()

    def status_of(self, pod: PodInfo) -> str:
        """Return how far the claim of a waiting pod has come; empty for one that names none."""
        progress = self._progress.get(pod.record.uid)
        claim = self._cache.claims.get(pod.claim_key)
        waits = claim is None or not claim.allocated
        return (progress.why if progress and waits else "") or describe_claim(pod, claim)

    def quota_changed(self, namespace: str) -> None:
        """Look soon at the pods of a namespace that have no claim."""
        for uid, pod in self._cache.pods.items():
            if pod.info.record.namespace == namespace and self._cache.claim_of(pod) is None:
                self.note(uid)

    def note(self, uid: str) -> None:
        """Look at a pod soon, once however often this is called until then.

        Pods are looked at in kube-scheduler's order: by priority, then by age. Those without a
        claim come before those that wait with one, which are looked at over and over.
        """
        pod = self._cache.pods.get(uid)
        if pod is None or uid in self._due:
            return
        self._due.add(uid)
        created = pod.info.created_at
        waits = self._cache.claim_of(pod) is not None
        age = created.isoformat() if created else ""
        heappush(self._queue, (-pod.info.priority, waits, age, uid))
        self._wanted.set()

    async def run(self) -> None:
        """Follow the cache until cancelled; call it once all lists are read."""
        for uid in self._cache.pods:
            self._cache.count_first_choice(uid)
        self._preemptions.adopt()
        await self._gangs.adopt()
        for uid in self._cache.pods:
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
        self._gangs.tick(leads=self._leads())
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
            if claim is None or not claim.allocated:
                self.note(uid)

    # -- one pod ---------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        slots = asyncio.Semaphore(_HANDLED_AT_ONCE)

        async def handle(uid: str) -> None:
            try:
                with self._activity:
                    await self.handle(uid)
            finally:
                self._busy.discard(uid)
                slots.release()
                if uid in self._again:
                    self._again.discard(uid)
                    self.note(uid)

        async with asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                for _ in self._planner.refreshing():
                    await asyncio.sleep(0)
                if not self._queue:
                    slots.release()
                    self._wanted.clear()
                    await self._wanted.wait()
                    continue
                *_, uid = heappop(self._queue)
                self._due.discard(uid)
                if uid in self._busy:
                    self._again.add(uid)
                    slots.release()
                    continue
                self._busy.add(uid)
                group.create_task(handle(uid), name=f"claim of pod {uid}")
                await asyncio.sleep(0)  # answers are read between two plans

    async def handle(self, uid: str) -> None:
        """Do what is due for one pod."""
        pod = self._cache.pods.get(uid)
        if pod is None or pod.info.gated or not self._leads():
            return
        progress = self._progress.setdefault(uid, _Progress())
        claim = self._cache.claim_of(pod)
        if self._awaits_own(progress, claim) or self._clock.monotonic() < progress.retry_s:
            return
        if claim is None:
            await self._create(pod, progress)
        elif claim.holder != uid:
            why = (
                f"claim {claim.name} was made by somebody else under the name that this pod was "
                "given; its containers will not start: delete claim and pod"
            )
            if self._report(pod.info, EventReason.NO_CLAIM, why):
                self._on_outcome(ClaimOutcome.TAKEN)
        elif not claim.terminating and not await self._give_back(pod, claim, progress):
            self._inherit(claim, progress)
            await self._follow_up(pod, claim, progress)

    async def _give_back(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> bool:
        """Delete a claim that the pod's gang does not use; report whether it is such."""
        if claim.allocated or not self._gangs.gives_back(pod):
            return False
        self._forget(pod)
        if await self._remove_own(pod, claim, progress):
            self._on_outcome(ClaimOutcome.REMOVED)
        return True

    async def _follow_up(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        """Do what is due for a claim of ours, which is that of the pod."""
        if claim.allocated:
            progress.not_taken = ""
            return
        uid, preemption = uid_of(pod), self._preemptions.of(uid_of(pod), claim)
        held = self._planner.held(pod, without=progress.refused)
        if held is not None and not claim.tolerated.issuperset(held.tolerated):
            self._preemptions.end(uid)
            await self._replace(pod, claim, progress)
        elif self._preemptions.is_threat(pod, claim, planned=progress.planned) or (
            held is None and preemption is None and self._may_take_kept_host(pod, claim)
        ):
            progress.lists -= 0 if claim.open else 1  # it was not refused
            await self._replace(pod, claim, progress)
        elif preemption is not None:
            await self._make_room(pod, claim, progress, preemption)
        elif self._is_refused(pod, claim, progress):
            self._note_refused(pod, claim, progress)
            await self._replace(pod, claim, progress)
        elif claim.open:
            await self._look_again(pod, claim, progress)

    def _inherit(self, claim: DeviceClaim, progress: _Progress) -> None:
        """Take note of cards that were freed before this replica led, and that were not taken."""
        if claim.open and claim.freed_on and not progress.claims:
            progress.not_taken = claim.freed_on
            progress.refused.add(claim.freed_on)

    async def _look_again(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        """Look whether an open claim can be replaced by a better one."""
        uid = uid_of(pod)
        if not self._cache.is_explained(uid):  # by the leader before
            self._cache.explain(pod, self._planner.plan(pod).why)
        kept = self._kept_from(pod)
        unneeded = claim.excluded - kept and (not kept or self._planner.plan(pod).nodes)
        if unneeded or self._fits_otherwise(pod, claim, progress):
            await self._replace(pod, claim, progress)
            return
        if pod.info.unschedulable_since is None:  # there may be room
            return
        plan = await self._preempt(pod, progress)
        if plan is None:
            return
        if not plan.nodes:
            self._cache.explain(pod, plan.why)
            return
        if await self._remove_own(pod, claim, progress):
            await self._write(pod, plan, progress)
        else:
            self._preemptions.end(uid)

    def _fits_otherwise(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> bool:
        """Report whether an open claim should rather let containers use more, or no more.

        It requests the same of cards that can be limited and of those that cannot.
        """
        borrow = self._planner.borrow_if_open(pod)
        # Of a PodGroup's pods all claims stay open.
        if not borrow or pod.info.pod_group or claim.borrowing != borrow.keys():
            return claim.borrowing != borrow.keys()
        plan = self._planner.plan(pod, without=progress.refused)
        fits = bool(plan.nodes) and progress.lists < _MOST_LISTS
        return fits and claim.borrowing != plan.borrow.keys()

    async def _preempt(self, pod: UnboundPod, progress: _Progress) -> Plan | None:
        """Return what the claim is to list once others have left; seldom if nobody is to leave.

        The plan has no nodes where others are preempted for first; None where there are no victims.
        """
        searches, due_s = progress.searches
        if progress.not_taken or pod.info.pod_group or self._clock.monotonic() < due_s:
            return None
        nodes = self._planner.candidates(pod, without=progress.refused)
        plan = await self._preemptions.find(pod, nodes)
        pause_s = _VICTIMS.pause_s(searches + 1)
        if plan is not None and plan.nodes:
            progress.searches = (0, 0.0)
            progress.planned = self._preemptions.number
        else:
            progress.searches = (searches + 1, self._clock.monotonic() + pause_s)
        return plan

    async def _make_room(
        self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress, preemption: Preemption
    ) -> None:
        """Go on with a preemption, of which the claim lists the cards to be."""
        # kube-scheduler goes by its taints as well, and those who leave may never end there.
        over = not self._planner.may_run(pod, preemption.node) or self._preemptions.is_over(
            preemption
        )
        if not over and not preemption.evicted:
            progress.due_s = self._clock.monotonic() + _TICK_S
            threats = self._threats_to(preemption)
            for other in threats:
                self.note(other)
            if threats or await self._preemptions.evict(preemption):
                return
            over = True
        if over or (
            preemption.free_s is None and self._planner.plan(pod, without=progress.refused).nodes
        ):
            self._preemptions.end(uid_of(pod))
            progress.due_s = None
            self._note_refused(pod, claim, progress)
            node = preemption.node
            if preemption.free_s is not None and self._planner.fits(pod, node):
                # Nobody else took the cards, so that evicting more pods would be in vain as well.
                progress.refused.add(node)
                progress.not_taken = node
            await self._replace(pod, claim, progress)

    def _threats_to(self, kept: Kept) -> list[str]:
        """Return the pods whose claims, or the ones that are being written, may take the cards."""
        found: list[str] = []
        for uid, pod in self._cache.pods.items():
            if uid in kept.pods or pod.info.priority > kept.priority:
                continue
            claim, progress = self._cache.claim_of(pod), self._progress.get(uid, _Progress())
            if claim is None or self._awaits_own(progress, claim):
                writes = uid in self._busy or progress.made
                threatens = bool(writes) and progress.planned < kept.number
            else:
                threatens = self._cache.listed_claim_of(pod) is claim and (
                    self._preemptions.is_threat(pod, claim, planned=progress.planned)
                )
            found += [uid] if threatens else []
        return found

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
        # The condition may still be that of the claim before.
        tried_s = _TRIES.pause_s(progress.claims - 1) if progress.claims > 1 else 0.0
        if self._clock.monotonic() - progress.made_at_s >= tried_s:
            return True
        progress.due_s = progress.made_at_s + tried_s
        return False

    async def _create(self, pod: UnboundPod, progress: _Progress) -> None:
        why = why_no_claim(pod.info)
        if why:
            if self._report(pod.info, EventReason.NO_CLAIM, f"no claim can be made: {why}"):
                self._on_outcome(ClaimOutcome.REFUSED)
            return
        found = await self._gangs.place(pod, self._threats_to)
        if isinstance(found, Withheld):
            self._withhold(pod, found)
            return
        if found is not None:
            progress.planned = self._preemptions.number
            await self._write(pod, found, progress)
            return
        await self._create_alone(pod, progress)

    async def _create_alone(self, pod: UnboundPod, progress: _Progress) -> None:
        why = self._quota.admit(pod)
        if why:
            self._withhold(pod, Withheld(why, Because.QUOTA))
            return
        plan = self._plan(pod, progress)
        if plan.cards is None and self._gangs.is_to_be_listed(pod):
            self._gangs.give_up(pod, plan.why)
            return
        if plan.cards is None and progress.lists < _MOST_LISTS:
            plan = await self._preempt(pod, progress) or plan
        if plan.cards is None and progress.not_taken:
            why = (
                f"nobody else is preempted: the cards freed on {progress.not_taken} were not taken"
            )
            plan = replace(plan, why=f"{plan.why}; {why}")
        await self._write(pod, plan, progress)

    def _withhold(self, pod: UnboundPod, found: Withheld) -> None:
        """Record why a pod has no claim, if that is not over in a moment."""
        if not found.why:
            return
        if found.because is Because.QUOTA:
            reported = self._report(pod.info, EventReason.QUOTA, f"no claim is made: {found.why}")
        else:
            self._cache.explain(pod, found.why)
            reason = EventReason.GANG if found.because is Because.PODS else EventReason.WAITING
            reported = self._report(pod.info, reason, f"waiting for a card: {found.why}")
        if reported:
            self._on_outcome(ClaimOutcome.WITHHELD)

    def _plan(self, pod: UnboundPod, progress: _Progress) -> Plan:
        """Return what the claim is to list, and count the best of it for the pod at once."""
        self._forget(pod)
        self._preemptions.end(uid_of(pod))
        progress.planned = self._preemptions.number
        kept = self._preemptions.kept_from(pod)
        plan = self._planner.plan(pod, without=progress.refused, kept=kept)
        if progress.lists >= _MOST_LISTS and not plan.tolerated:
            plan = Plan(choice={}, cards=None, why="kube-scheduler takes none of the best cards")
        elif pod.info.pod_group and not plan.tolerated:
            # kube-scheduler tries all of them together: what is listed for pods that may be waited
            # for would count as theirs.
            plan = Plan(choice={}, cards=None, why=plan.why)
        # There must be no await since the choice, or another pod could be given the same MiB.
        if plan.nodes:
            self._cache.assume(pod, plan.nodes[0], plan.choice, move=plan.move)
        return plan

    def _kept_from(self, pod: UnboundPod) -> frozenset[CardUuid]:
        """Return the cards that an open claim leaves out."""
        return self._preemptions.kept_from(pod) | self._planner.without_host(pod)

    def _may_take_kept_host(self, pod: UnboundPod, claim: DeviceClaim) -> bool:
        """Report whether a claim leads to a node whose CPU or memory Moves keep for others.

        kube-scheduler knows nothing of what is kept.
        """
        kept = self._planner.without_host(pod)
        return not (kept <= claim.excluded if claim.open else kept.isdisjoint(claim.cards))

    async def _write(self, pod: UnboundPod, plan: Plan, progress: _Progress) -> None:
        if plan.why and self._leads():
            self._cache.explain(pod, plan.why)
            self._report(pod.info, EventReason.WAITING, f"waiting for a card: {plan.why}")
        async with self._writes:
            await self._write_now(pod, plan, progress)

    async def _write_now(self, pod: UnboundPod, plan: Plan, progress: _Progress) -> None:
        if not self._leads():  # any more
            self._forget(pod)
            self._preemptions.end(uid_of(pod))
            return
        info, need = pod.info, pod.info.need
        assert need is not None, "a pod that is planned for has a need"  # noqa: S101
        record = info.record
        try:
            body = claim_of(
                record,
                info.device_claim,
                need,
                plan.cards,
                borrow=self._planner.borrow_if_open(pod) if plan.cards is None else plan.borrow,
                card_class=info.card_class,
                kept=self._kept_from(pod) if plan.cards is None else (),
                tolerated=plan.tolerated,
                freed_on=self._preemptions.node_of(record.uid) or progress.not_taken,
            )
            async with asyncio.timeout(self._limit_s):
                created = await self._api.create(RESOURCE_CLAIMS, body, namespace=record.namespace)
        except AlreadyExists:
            # An earlier answer was lost, or somebody was faster: the informer will show which.
            self._retry(progress)
        except (RequestError, Forbidden, Invalid, NotFound) as error:
            if not self._gangs.is_held(uid_of(pod)):
                self._forget(pod)
            self._preemptions.end(uid_of(pod))
            self._failed(pod, progress, error)
        except (KubeError, TimeoutError) as error:
            # It may exist, so its cards go on counting.
            self._failed(pod, progress, error)
        else:
            progress.made = created["metadata"]["uid"]
            progress.made_at_s = self._clock.monotonic()
            self._gangs.written(pod)
            progress.failures = 0
            progress.claims += 1
            progress.lists += plan.cards is not None
            progress.why = progress.why if plan.why else ""
            self._on_outcome(ClaimOutcome.OPEN if plan.cards is None else ClaimOutcome.LISTED)
            log.info("claim_created", pod=record.key, claim=info.device_claim, nodes=plan.nodes)

    def _note_refused(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        # What fits and was listed is refused for something else, such as affinity to other pods.
        self._forget(pod)
        listed = self._cache.nodes_of(claim)
        progress.refused |= listed.intersection(self._planner.plan(pod).nodes)

    async def _replace(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> None:
        """Delete a claim that nothing was allocated for, and make another."""
        self._forget(pod)
        if not await self._remove_own(pod, claim, progress):
            return
        self._on_outcome(ClaimOutcome.REPLACED)
        now = self._cache.pods.get(uid_of(pod))
        if now is not None and self._leads():
            await self._create(now, progress)

    async def _remove_own(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> bool:
        """Delete a claim that nothing was allocated for; report whether there is none now."""
        async with self._writes:
            return await self._remove_now(pod, claim, progress)

    async def _remove_now(self, pod: UnboundPod, claim: DeviceClaim, progress: _Progress) -> bool:
        if not self._leads():  # any more
            self._cache.count_first_choice(uid_of(pod))
            return False
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
            return False
        except (KubeError, TimeoutError) as error:
            self._cache.count_first_choice(uid_of(pod))
            self._failed(pod, progress, error)
            return False
        return True

    def _forget(self, pod: UnboundPod) -> None:
        self._cache.forget(uid_of(pod))

    def _retry(self, progress: _Progress, *, after_s: float = 0.0) -> None:
        progress.failures += 1
        pause_s = _RETRY.pause_s(progress.failures) + min(after_s, _RETRY.longest_pause_s)
        progress.retry_s = progress.due_s = self._clock.monotonic() + pause_s

    def _failed(self, pod: UnboundPod, progress: _Progress, error: Exception) -> None:
        after_s = error.retry_after_s if isinstance(error, TooManyRequests) else None
        self._retry(progress, after_s=after_s or 0.0)
        why = str(error) or f"no answer within {self._limit_s:g} s"
        self._on_outcome(ClaimOutcome.FAILED)
        log.warning("claim_not_written", pod=pod.info.record.key, error=why)
        self._report(pod.info, EventReason.NO_CLAIM, f"the claim could not be written: {why}")

    # -- what is left over -----------------------------------------------------------------------

    async def sweep(self) -> None:
        """Remove the claims that we made for pods which are gone, or have ended.

        Those that were left at the last look as well: whoever removes claims by their owners has
        had time to, by no clock but ours.
        """
        left: dict[str, DeviceClaim] = {}
        for at, claim in enumerate(tuple(self._cache.claims.values())):
            if at % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
                await self._clock.sleep(0)
            if claim.managed and claim.owner is not None and not claim.terminating:
                pod = self._find(claim.namespace, claim.owner.name)
                if pod is None or uid_of(pod) != claim.owner.uid:
                    left[claim.uid] = claim
        before, self._left = self._left, left.keys()
        for uid in left.keys() & before:
            if self._leads():
                await self._remove(left[uid])

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

    def _report(self, pod: PodInfo, reason: EventReason, note: str) -> bool:
        """Write an Event on a pod; report whether, as it may have had it.

        Not if its last one for that reason was the same, or is no minute old.
        """
        progress = self._progress.setdefault(pod.record.uid, _Progress())
        progress.why = note
        now_s = self._clock.monotonic()
        last, written_s = progress.reported.get(reason, ("", 0.0))
        if last and (last == note or now_s - written_s < _EVENT_AGAIN_S):
            return False
        progress.reported[reason] = (note, now_s)
        self._event(pod.record, reason, note)
        return True

    def preempted(self, victim: BoundPod, preemption: Preemption) -> None:
        """Write for whom a pod was evicted; not by name, which may be of another namespace."""
        note = f"Preempted by pod {preemption.pod} on node {preemption.node}"
        self._event(victim, EventReason.PREEMPTED, note)

    def _event(self, pod: PodRecord | BoundPod, reason: EventReason, note: str) -> None:
        self._events[pod.uid, reason] = (Regarding.pod(pod), note)
        self._event_wanted.set()

    async def _write_events(self) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def write(where: Regarding, reason: EventReason, note: str) -> None:
            try:
                warns = reason in (EventReason.NO_CLAIM, EventReason.QUOTA)
                level = EventLevel.WARNING if warns else EventLevel.NORMAL
                await self._recorder.emit(where, reason=reason.value, note=note, level=level)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await self._event_wanted.wait()
                self._event_wanted.clear()
                while self._events:
                    await slots.acquire()
                    uid, reason = next(iter(self._events))
                    where, note = self._events.pop((uid, reason))
                    group.create_task(write(where, reason, note), name=f"event of pod {uid}")
