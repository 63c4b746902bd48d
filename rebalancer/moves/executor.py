"""Advances each move by what the API server shows, so that a crash loses nothing.

========= ====================================================== ==========================
phase     what must be true to go on                             else
========= ====================================================== ==========================
planned   cordon visible, still right, dry run allowed           wait; aborted when outdated
evicting  the pod is evicted, or gone already                    retry, with longer pauses
evicted   a ready pod that is not a sibling replaces it          wait; lost after a while
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
_NEEDED_RELIEF: Final = 0.5  # share of the pod's use by which the source must be less busy


class Evicts(Protocol):
    """What this module needs of :class:`rebalancer.moves.evictor.Evictor`."""

    def dry_run(self, move: Move) -> Awaitable[EvictionResult]: ...

    def evict(self, move: Move) -> Awaitable[EvictionResult]: ...

    def check(self, move: Move) -> Awaitable[EvictionResult]: ...


class MoveReporter(Protocol):
    """What this module needs of :class:`rebalancer.event_reporter.EventReporter`."""

    def dry_run_answered(self, record: MoveRecord, result: EvictionResult) -> None: ...

    def asked(self, record: MoveRecord, result: EvictionResult) -> None: ...

    def evicted(self, record: MoveRecord) -> Awaitable[None]: ...

    def completed(
        self,
        record: MoveRecord,
        before: MoveRecord,
        state: DisruptionState,
        *,
        policy: RebalancerPolicy,
    ) -> Awaitable[None]: ...

    def verified(self, *, relief_ratio: float) -> None: ...

    def ended(self, record: MoveRecord) -> Awaitable[None]: ...

    def left_phase(self, record: MoveRecord, *, now: datetime) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step depends on.

    Attributes:
        state: the disruption state of this cycle, with *every* past move.
        nodes: the nodes as the API server shows them, with their cordons.
    """

    state: DisruptionState
    nodes: Mapping[str, NodeCards]
    policy: RebalancerPolicy
    now: datetime


class MoveExecutor:
    """Advances records through their phases.

    Args:
        evictor: evicts pods.
        reporter: logs, counts and records Events.
        persist: writes a record; when it returns, a crash cannot lose the record. It raises if
            this process may not write any more.
    """

    def __init__(
        self,
        evictor: Evicts,
        reporter: MoveReporter,
        persist: Callable[[MoveRecord], Awaitable[None]],
    ) -> None:
        self._evictor = evictor
        self._reporter = reporter
        self._persist = persist

    async def step(self, record: MoveRecord, context: StepContext) -> None:
        """Advance one move as far as possible now."""
        match record.phase:
            case MovePhase.PLANNED:
                await self._planned(record, context)
            case MovePhase.EVICTING:
                await self._evicting(record, context)
            case MovePhase.EVICTED:
                await self._evicted(record, context)
            case MovePhase.VERIFYING:
                await self._verifying(record, context)
            case MovePhase.DONE | MovePhase.ABORTED:
                return
            case _:
                assert_never(record.phase)

    async def dry_run(self, record: MoveRecord, context: StepContext) -> None:
        """End a dry run's move at the point where a real one would evict the pod."""
        result = await self._evictor.dry_run(record.move)
        self._reporter.dry_run_answered(record, result)
        detail = f"{result.outcome.value} {result.detail}".strip()
        await self._end(record, Ending.DRY_RUN, context, detail=detail)

    async def _planned(self, record: MoveRecord, context: StepContext) -> None:
        policy, now = context.policy, context.now
        if policy.mode is not Mode.ACTIVE:
            await self._end(record, Ending.PAUSED, context, detail=f"mode is {policy.mode.value}")
            return
        if record.age(now=now) > timedelta(seconds=policy.plan_ttl_s):
            await self._end(record, Ending.EXPIRED, context, detail=record.detail)
            return
        waiting_for = self._not_yet(record, context)
        if waiting_for:
            await self._note(record, waiting_for)
            return
        outdated = validate_move(
            without_move(context.state, record), record.move, policy=policy, now=now
        )
        if outdated is not None:
            why = f"{outdated.subject}: {outdated.reason.value} {outdated.detail}".strip()
            await self._end(record, Ending.OUTDATED, context, detail=why)
            return
        result = await self._evictor.dry_run(record.move)
        self._reporter.dry_run_answered(record, result)
        await self._begin(record, result, context)

    def _not_yet(self, record: MoveRecord, context: StepContext) -> str:
        """Return what a planned move still waits for; empty when nothing."""
        node = context.nodes.get(record.move.source_node)
        if node is None or record.move.source not in node.cordoned(now=context.now):
            return "the cordon of its card"
        state = context.state
        return blindness(state.usage, state.cards(), context.policy)

    async def _begin(
        self, record: MoveRecord, result: EvictionResult, context: StepContext
    ) -> None:
        match result.outcome:
            case EvictionOutcome.ALLOWED:
                siblings = tuple(sorted(_of_owner(record.move, context.state)))
                begun = replace(
                    record.to(MovePhase.EVICTING, now=context.now), siblings=siblings, detail=""
                )
                self._reporter.left_phase(record, now=context.now)
                await self._persist(begun)  # persisted before the side effect that it announces
                await self._evicting(begun, context)
            case EvictionOutcome.BLOCKED | EvictionOutcome.BUSY | EvictionOutcome.UNCLEAR:
                await self._note(record, result.detail)  # no pod was evicted: retry
            case EvictionOutcome.GONE | EvictionOutcome.OTHER_POD:
                await self._end(record, Ending.OTHER_POD, context, detail=result.detail)
            case EvictionOutcome.REFUSED:
                await self._end(record, Ending.REFUSED, context, detail=result.detail)
            case _:
                assert_never(result.outcome)

    async def _evicting(self, record: MoveRecord, context: StepContext) -> None:
        now, policy = context.now, context.policy
        if record.retry_at is not None and now < record.retry_at:
            return
        late = record.age(now=now) > timedelta(seconds=policy.evict_ttl_s)
        stop = late or policy.mode is not Mode.ACTIVE
        # Once the pod may have been evicted, only the pod itself can show that it was not.
        result = await (self._evictor.check if stop else self._evictor.evict)(record.move)
        if not stop:
            self._reporter.asked(record, result)
        match result.outcome:
            case EvictionOutcome.ALLOWED if stop:
                ending = Ending.BLOCKED if late else Ending.PAUSED
                await self._end(record, ending, context, detail=record.detail)
            case EvictionOutcome.ALLOWED | EvictionOutcome.GONE:
                gone = replace(record.to(MovePhase.EVICTED, now=now), detail="")
                self._reporter.left_phase(record, now=now)
                await self._persist(gone)
                await self._reporter.evicted(gone)
            case EvictionOutcome.OTHER_POD:
                # The name belongs to a pod with another UID: ours is gone, for whatever reason.
                await self._persist(replace(record.to(MovePhase.EVICTED, now=now), detail=""))
                self._reporter.left_phase(record, now=now)
            case EvictionOutcome.REFUSED:
                await self._end(record, Ending.REFUSED, context, detail=result.detail)
            case EvictionOutcome.BLOCKED | EvictionOutcome.BUSY | EvictionOutcome.UNCLEAR:
                await self._retry_later(record, result, now=now)
            case _:
                assert_never(result.outcome)

    async def _retry_later(
        self, record: MoveRecord, result: EvictionResult, *, now: datetime
    ) -> None:
        pause_s = min(_FIRST_PAUSE_S * 2**record.failures, _LONGEST_PAUSE_S)
        pause_s *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not secrecy
        if result.outcome is EvictionOutcome.UNCLEAR:
            pause_s = 0.0  # the next cycle reads the pod first
        pause_s = max(pause_s, min(result.retry_after_s or 0.0, _LONGEST_PAUSE_S))
        await self._persist(
            replace(
                record,
                failures=record.failures + 1,
                retry_at=now + timedelta(seconds=pause_s),
                detail=result.detail,
            )
        )

    async def _evicted(self, record: MoveRecord, context: StepContext) -> None:
        now = context.now
        found = _replacement(record, context.state)
        if found is not None:
            landed = _card_of(found, context.state)
            there = replace(
                record.to(MovePhase.VERIFYING, now=now),
                landed=landed,
                replacement=found.info.record.key,
            )
            self._reporter.left_phase(record, now=now)
            await self._persist(there)
            await self._reporter.completed(there, record, context.state, policy=context.policy)
        elif record.age(now=now) > timedelta(seconds=context.policy.replacement_ttl_s):
            await self._end(record, Ending.LOST, context, detail="no replacement became ready")

    async def _verifying(self, record: MoveRecord, context: StepContext) -> None:
        if record.age(now=context.now) < timedelta(seconds=context.policy.settle_s):
            return
        reading = context.state.reading(record.move.source)
        if reading is None:
            await self._end(record, Ending.UNVERIFIED, context, detail="the source is not measured")
            return
        relief = record.move.level_ratio - reading.level_ratio
        enough = relief >= _NEEDED_RELIEF * record.move.busy_ratio
        detail = f"the source went from {record.move.level_ratio:.0%} to {reading.level_ratio:.0%}"
        self._reporter.verified(relief_ratio=relief)
        ending = Ending.RELIEVED if enough else Ending.USELESS
        await self._end(record, ending, context, detail=detail)

    async def _end(
        self, record: MoveRecord, ending: Ending, context: StepContext, *, detail: str
    ) -> None:
        ended = record.ended(ending, now=context.now, detail=detail)
        self._reporter.left_phase(record, now=context.now)
        await self._persist(ended)
        await self._reporter.ended(ended)

    async def _note(self, record: MoveRecord, detail: str) -> None:
        """Persist and log why the move waits, if the reason is new."""
        if detail != record.detail:
            log.info("move_waits", move=record.id, pod=record.move.pod, why=detail)
            await self._persist(replace(record, detail=detail))


def without_move(state: DisruptionState, record: MoveRecord) -> DisruptionState:
    """Return the disruption state as if this move had never begun."""
    mine = record.past()
    return replace(state, past=[move for move in state.past if move != mine])


def under_way(records: tuple[MoveRecord, ...]) -> list[MoveRecord]:
    """Return the moves whose replacement is not ready yet."""
    return [record for record in records if record.phase in UNDER_WAY]


def _of_owner(move: Move, state: DisruptionState) -> set[str]:
    return {uid for uid, pod in state.pods.items() if pod.owner_uid == move.owner_uid}


def _replacement(record: MoveRecord, state: DisruptionState) -> PlacedPod | None:
    """Return the ready pod that replaces the victim, the first by name; None if there is none."""
    known = {record.move.pod_uid, *record.siblings}
    ready = [
        pod
        for uid, pod in state.pods.items()
        if pod.owner_uid == record.move.owner_uid
        and uid not in known
        and pod.info.ready
        and pod.info.record.assignment
    ]
    return min(ready, key=lambda pod: pod.info.record.key, default=None)


def _card_of(pod: PlacedPod, state: DisruptionState) -> CardUuid | None:
    holds = state.snapshot.pods.get(pod.uid)
    return min(holds.by_card, default=None) if holds else None
