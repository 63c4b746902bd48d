"""Advances each move by what the API server shows, so that a crash loses nothing.

What a move does next is decided without I/O, by `steps`. This module reads the facts, writes the
record before the side effect that it announces, performs that, and reports it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from fracgpu.disruption.move import ENDED, Ending
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MovePhase
from rebalancer.moves.observer import Observer
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.side_effects import SideEffects
from rebalancer.moves.steps import (
    Action,
    Do,
    Enter,
    EvictionResult,
    MoveFacts,
    Step,
    StepContext,
    Wait,
    answered,
    end,
    next_step,
)

log = structlog.get_logger()

_MOST_STEPS: Final = 20  # of one move in one cycle; it needs half of that at most


class MoveReporter(Protocol):
    """What this module needs of :class:`rebalancer.event_reporter.EventReporter`."""

    def done(
        self, action: Action, record: MoveRecord, result: EvictionResult, policy: RebalancerPolicy
    ) -> Awaitable[None]: ...

    def entered(
        self, record: MoveRecord, before: MoveRecord, context: StepContext
    ) -> Awaitable[None]: ...


class MoveExecutor:
    """Advances records through their phases.

    Args:
        observer: reads what a step depends on.
        effects: performs side effects.
        reporter: logs, counts and records Events.
        persist: writes a record and returns it as stored; when it returns, a crash cannot lose it.
            It raises if this process may not write any more.
        jitter: 0..1; spreads the retries of evictions.
    """

    def __init__(
        self,
        observer: Observer,
        effects: SideEffects,
        reporter: MoveReporter,
        persist: Callable[[MoveRecord], Awaitable[MoveRecord]],
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._observer = observer
        self._effects = effects
        self._reporter = reporter
        self._persist = persist
        self._jitter = jitter

    async def step(self, record: MoveRecord, context: StepContext) -> None:
        """Advance one move as far as possible now.

        Raises:
            KubeError: the API server did not answer, or the record was changed by somebody else.
        """
        facts: MoveFacts | None = None
        for _ in range(_MOST_STEPS):
            if record.phase in ENDED:
                return
            facts = facts or await self._observer.observe(record, context)
            # In a thread: to look at a plan again takes as long as to look at all cards.
            step = await asyncio.to_thread(next_step, record, facts, context)
            while isinstance(step, Do):
                step = await self._do(step, record, facts, context)
            if isinstance(step, Wait):
                await self._note(record, step.why)
                return
            before, record = record, await self._enter(record, step, context)
            # What is read once is good for all steps of the cycle until a pod may have changed.
            facts = facts if before.phase in _UNDISTURBED else None
        log.error("move_does_not_settle", move=record.id, phase=record.phase.value)

    async def dry_run(self, record: MoveRecord, context: StepContext) -> None:
        """End a dry run's move at the point where a real one would disturb the pod."""
        facts = await self._observer.observe(record, context)
        result = await self._effects.perform(Action.PREFLIGHT, record, facts, context)
        await self._reporter.done(Action.PREFLIGHT, record, result, context.policy)
        detail = f"{result.outcome.value} {result.detail}".strip()
        await self._enter(record, end(record, Ending.DRY_RUN, detail, now=context.now), context)

    async def _do(
        self, due: Do, record: MoveRecord, facts: MoveFacts, context: StepContext
    ) -> Step:
        """Perform a side effect, report it, and return what follows from the answer."""
        result = await self._effects.perform(due.action, record, facts, context)
        await self._reporter.done(due.action, record, result, context.policy)
        return answered(due, record, result, facts, context, jitter=self._jitter())

    async def _enter(self, before: MoveRecord, step: Enter, context: StepContext) -> MoveRecord:
        """Persist a changed record, then report what the change means."""
        after = await self._persist(step.record)
        if after.phase is not before.phase:
            await self._reporter.entered(after, before, context)
        return after

    async def _note(self, record: MoveRecord, why: str) -> None:
        """Persist and log why the move waits, if the reason is new."""
        noted = record.with_status(message=why)
        if noted != record:
            log.info("move_waits", move=record.id, pod=record.move.pod, why=why)
            await self._persist(noted)


_UNDISTURBED: Final = frozenset({MovePhase.PLANNED, MovePhase.RESERVED, MovePhase.NOTICED})
