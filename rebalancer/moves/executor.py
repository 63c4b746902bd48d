"""Takes each move one step further, by what the API server shows; a crash loses nothing.

========= ====================================================== ==========================
phase     what must be true to go on                             else
========= ====================================================== ==========================
planned   cordon visible, still right, rehearsal allowed         wait; aborted when outdated
evicting  the pod is evicted, or gone already                    again, with longer pauses
evicted   a pod that is not a sibling is ready in its place      wait; lost after a while
verifying settled: the source is less busy by half the pod's use useless; longer rest
========= ====================================================== ==========================
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol, assert_never

import structlog

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import blindness
from fracgpu.disruption.move import Move
from fracgpu.disruption.planner import validate_move
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.cluster_state import PlacedPod
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult
from rebalancer.moves.record import UNDER_WAY, Ending, MovePhase, MoveRecord

log = structlog.get_logger()

_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 60.0
_NEEDED_RELIEF: Final = 0.5  # of the pod's use must be gone from the source


class Evicts(Protocol):
    """What this module needs of :class:`rebalancer.moves.evictor.Evictor`."""

    def dry_run(self, move: Move) -> Awaitable[EvictionResult]: ...

    def evict(self, move: Move) -> Awaitable[EvictionResult]: ...

    def look(self, move: Move) -> Awaitable[EvictionResult]: ...


class MoveReporter(Protocol):
    """What this module needs of :class:`rebalancer.event_reporter.EventReporter`."""

    def dry_run_answered(self, record: MoveRecord, verdict: EvictionResult) -> None: ...

    def asked(self, record: MoveRecord, verdict: EvictionResult) -> None: ...

    def evicted(self, record: MoveRecord) -> Awaitable[None]: ...

    def completed(
        self,
        record: MoveRecord,
        before: MoveRecord,
        picture: DisruptionState,
        *,
        policy: RebalancerPolicy,
    ) -> Awaitable[None]: ...

    def verified(self, *, relief_ratio: float) -> None: ...

    def ended(self, record: MoveRecord) -> Awaitable[None]: ...

    def left_phase(self, record: MoveRecord, *, now: datetime) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step looks at.

    Attributes:
        state: of this cycle, with *every* past move in it.
        nodes: as the API server shows them, cordons included.
    """

    state: DisruptionState
    nodes: Mapping[str, NodeCards]
    policy: RebalancerPolicy
    now: datetime


class MoveExecutor:
    """Moves records through their phases.

    Args:
        evictor: the only door out.
        journal: tells people and Prometheus.
        persist: writes a record; when it returns, a crash cannot lose it. It raises where this
            process may not write any more.
    """

    def __init__(
        self,
        evictor: Evicts,
        journal: MoveReporter,
        persist: Callable[[MoveRecord], Awaitable[None]],
    ) -> None:
        self._evictor = evictor
        self._journal = journal
        self._persist = persist

    async def step(self, record: MoveRecord, scene: StepContext) -> None:
        """Take one move as far as it can go now."""
        match record.phase:
            case MovePhase.PLANNED:
                await self._planned(record, scene)
            case MovePhase.EVICTING:
                await self._evicting(record, scene)
            case MovePhase.EVICTED:
                await self._evicted(record, scene)
            case MovePhase.VERIFYING:
                await self._verifying(record, scene)
            case MovePhase.DONE | MovePhase.ABORTED:
                return
            case _:
                assert_never(record.phase)

    async def dry_run(self, record: MoveRecord, scene: StepContext) -> None:
        """End a dry run's move where a real one would begin to disturb."""
        verdict = await self._evictor.dry_run(record.move)
        self._journal.dry_run_answered(record, verdict)
        detail = f"{verdict.outcome.value} {verdict.detail}".strip()
        await self._end(record, Ending.DRY_RUN, scene, detail=detail)

    async def _planned(self, record: MoveRecord, scene: StepContext) -> None:
        policy, now = scene.policy, scene.now
        if policy.mode is not Mode.ACTIVE:
            await self._end(record, Ending.PAUSED, scene, detail=f"mode is {policy.mode.value}")
            return
        if record.age(now=now) > timedelta(seconds=policy.plan_ttl_s):
            await self._end(record, Ending.EXPIRED, scene, detail=record.detail)
            return
        waiting_for = self._not_yet(record, scene)
        if waiting_for:
            await self._note(record, waiting_for)
            return
        outdated = validate_move(
            without_move(scene.state, record), record.move, policy=policy, now=now
        )
        if outdated is not None:
            why = f"{outdated.subject}: {outdated.reason.value} {outdated.detail}".strip()
            await self._end(record, Ending.OUTDATED, scene, detail=why)
            return
        verdict = await self._evictor.dry_run(record.move)
        self._journal.dry_run_answered(record, verdict)
        await self._begin(record, verdict, scene)

    def _not_yet(self, record: MoveRecord, scene: StepContext) -> str:
        """Say what a planned move still waits for; empty when nothing."""
        node = scene.nodes.get(record.move.source_node)
        if node is None or record.move.source not in node.cordoned(now=scene.now):
            return "the cordon of its card"
        picture = scene.state
        return blindness(picture.usage, picture.cards(), scene.policy)

    async def _begin(self, record: MoveRecord, verdict: EvictionResult, scene: StepContext) -> None:
        match verdict.outcome:
            case EvictionOutcome.ALLOWED:
                siblings = tuple(sorted(_of_owner(record.move, scene.state)))
                begun = replace(
                    record.to(MovePhase.EVICTING, now=scene.now), siblings=siblings, detail=""
                )
                self._journal.left_phase(record, now=scene.now)
                await self._persist(begun)  # before the side effect that it announces
                await self._evicting(begun, scene)
            case EvictionOutcome.BLOCKED | EvictionOutcome.BUSY | EvictionOutcome.UNCLEAR:
                await self._note(record, verdict.detail)  # nobody was disturbed: ask again
            case EvictionOutcome.GONE | EvictionOutcome.OTHER_POD:
                await self._end(record, Ending.OTHER_POD, scene, detail=verdict.detail)
            case EvictionOutcome.REFUSED:
                await self._end(record, Ending.REFUSED, scene, detail=verdict.detail)
            case _:
                assert_never(verdict.outcome)

    async def _evicting(self, record: MoveRecord, scene: StepContext) -> None:
        now, policy = scene.now, scene.policy
        if record.retry_at is not None and now < record.retry_at:
            return
        late = record.age(now=now) > timedelta(seconds=policy.evict_ttl_s)
        stop = late or policy.mode is not Mode.ACTIVE
        # Once it may have been evicted, only the pod itself can say that it was not.
        verdict = await (self._evictor.look if stop else self._evictor.evict)(record.move)
        if not stop:
            self._journal.asked(record, verdict)
        match verdict.outcome:
            case EvictionOutcome.ALLOWED if stop:
                ending = Ending.BLOCKED if late else Ending.PAUSED
                await self._end(record, ending, scene, detail=record.detail)
            case EvictionOutcome.ALLOWED | EvictionOutcome.GONE:
                gone = replace(record.to(MovePhase.EVICTED, now=now), detail="")
                self._journal.left_phase(record, now=now)
                await self._persist(gone)
                await self._journal.evicted(gone)
            case EvictionOutcome.OTHER_POD:
                # The name came back with another UID: ours is gone, however that happened.
                await self._persist(replace(record.to(MovePhase.EVICTED, now=now), detail=""))
                self._journal.left_phase(record, now=now)
            case EvictionOutcome.REFUSED:
                await self._end(record, Ending.REFUSED, scene, detail=verdict.detail)
            case EvictionOutcome.BLOCKED | EvictionOutcome.BUSY | EvictionOutcome.UNCLEAR:
                await self._retry_later(record, verdict, now=now)
            case _:
                assert_never(verdict.outcome)

    async def _retry_later(
        self, record: MoveRecord, verdict: EvictionResult, *, now: datetime
    ) -> None:
        pause_s = min(_FIRST_PAUSE_S * 2**record.failures, _LONGEST_PAUSE_S)
        pause_s *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not secrecy
        if verdict.outcome is EvictionOutcome.UNCLEAR:
            pause_s = 0.0  # the next cycle reads the pod first
        pause_s = max(pause_s, min(verdict.retry_after_s or 0.0, _LONGEST_PAUSE_S))
        await self._persist(
            replace(
                record,
                failures=record.failures + 1,
                retry_at=now + timedelta(seconds=pause_s),
                detail=verdict.detail,
            )
        )

    async def _evicted(self, record: MoveRecord, scene: StepContext) -> None:
        now = scene.now
        found = _replacement(record, scene.state)
        if found is not None:
            landed = _card_of(found, scene.state)
            there = replace(
                record.to(MovePhase.VERIFYING, now=now),
                landed=landed,
                replacement=found.info.record.key,
            )
            self._journal.left_phase(record, now=now)
            await self._persist(there)
            await self._journal.completed(there, record, scene.state, policy=scene.policy)
        elif record.age(now=now) > timedelta(seconds=scene.policy.replacement_ttl_s):
            await self._end(record, Ending.LOST, scene, detail="no replacement became ready")

    async def _verifying(self, record: MoveRecord, scene: StepContext) -> None:
        if record.age(now=scene.now) < timedelta(seconds=scene.policy.settle_s):
            return
        reading = scene.state.reading(record.move.source)
        if reading is None:
            await self._end(record, Ending.UNVERIFIED, scene, detail="the source is not measured")
            return
        relief = record.move.level_ratio - reading.level_ratio
        enough = relief >= _NEEDED_RELIEF * record.move.busy_ratio
        detail = f"the source went from {record.move.level_ratio:.0%} to {reading.level_ratio:.0%}"
        self._journal.verified(relief_ratio=relief)
        ending = Ending.RELIEVED if enough else Ending.USELESS
        await self._end(record, ending, scene, detail=detail)

    async def _end(
        self, record: MoveRecord, ending: Ending, scene: StepContext, *, detail: str
    ) -> None:
        ended = record.ended(ending, now=scene.now, detail=detail)
        self._journal.left_phase(record, now=scene.now)
        await self._persist(ended)
        await self._journal.ended(ended)

    async def _note(self, record: MoveRecord, detail: str) -> None:
        """Remember why nothing happens, when that is news."""
        if detail != record.detail:
            log.info("move_waits", move=record.id, pod=record.move.pod, why=detail)
            await self._persist(replace(record, detail=detail))


def without_move(picture: DisruptionState, record: MoveRecord) -> DisruptionState:
    """Give the picture as if this move had never been begun."""
    mine = record.past()
    return replace(picture, past=[it for it in picture.past if it != mine])


def under_way(records: tuple[MoveRecord, ...]) -> list[MoveRecord]:
    """Give the moves whose replacement is not ready yet."""
    return [it for it in records if it.phase in UNDER_WAY]


def _of_owner(move: Move, picture: DisruptionState) -> set[str]:
    return {uid for uid, it in picture.pods.items() if it.owner_uid == move.owner_uid}


def _replacement(record: MoveRecord, picture: DisruptionState) -> PlacedPod | None:
    """Give the ready pod that stands in the victim's place, the first by name."""
    known = {record.move.pod_uid, *record.siblings}
    ready = [
        it
        for uid, it in picture.pods.items()
        if it.owner_uid == record.move.owner_uid
        and uid not in known
        and it.info.ready
        and it.info.record.assignment
    ]
    return min(ready, key=lambda it: it.info.record.key, default=None)


def _card_of(occupant: PlacedPod, picture: DisruptionState) -> CardUuid | None:
    holds = picture.snapshot.pods.get(occupant.uid)
    return min(holds.by_card, default=None) if holds else None
