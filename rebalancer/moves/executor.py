"""Advances each move by what the API server shows, so that a crash loses nothing.

What a move does next is decided without I/O, by `steps`. This module reads the facts, writes the
Move before the side effect that it announces, performs that, and reports it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import ENDED, Ending, Move, MovePhase
from rebalancer.moves.observer import Observer
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
        self, action: Action, move: Move, result: EvictionResult, policy: RebalancerPolicy
    ) -> Awaitable[None]: ...

    def entered(self, move: Move, before: Move, context: StepContext) -> Awaitable[None]: ...


class MoveExecutor:
    """Advances Moves through their phases.

    Args:
        observer: reads what a step depends on.
        effects: performs side effects.
        reporter: logs, counts and records Events.
        persist: writes a Move and returns it as stored; when it returns, a crash cannot lose it.
            It raises if this process may not write any more.
        jitter: 0..1; spreads the retries of evictions.
    """

    def __init__(
        self,
        observer: Observer,
        effects: SideEffects,
        reporter: MoveReporter,
        persist: Callable[[Move], Awaitable[Move]],
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._observer = observer
        self._effects = effects
        self._reporter = reporter
        self._persist = persist
        self._jitter = jitter

    async def step(self, move: Move, context: StepContext) -> None:
        """Advance one move as far as possible now.

        Raises:
            KubeError: the API server did not answer, or the Move was changed by somebody else.
        """
        facts: MoveFacts | None = None
        for _ in range(_MOST_STEPS):
            if move.phase in ENDED:
                return
            facts = facts or await self._observer.observe(move, context)
            # In a thread: to look at a plan again takes as long as to look at all cards.
            step = await asyncio.to_thread(next_step, move, facts, context)
            while isinstance(step, Do):
                step = await self._do(step, move, facts, context)
            if isinstance(step, Wait):
                await self._note(move, step.why)
                return
            before, move = move, await self._enter(move, step, context)
            # What is read once is good for all steps of the cycle until a pod may have changed.
            facts = facts if before.phase in _UNDISTURBED else None
        log.error("move_does_not_settle", move=move.name, phase=move.phase.value)

    async def dry_run(self, move: Move, context: StepContext) -> None:
        """End a dry run's move at the point where a real one would disturb the pod."""
        facts = await self._observer.observe(move, context)
        result = await self._effects.perform(Action.PREFLIGHT, move, facts, context)
        await self._reporter.done(Action.PREFLIGHT, move, result, context.policy)
        detail = f"{result.outcome.value} {result.detail}".strip()
        await self._enter(move, end(move, Ending.DRY_RUN, detail, now=context.now), context)

    async def _do(self, due: Do, move: Move, facts: MoveFacts, context: StepContext) -> Step:
        """Perform a side effect, report it, and return what follows from the answer."""
        result = await self._effects.perform(due.action, move, facts, context)
        await self._reporter.done(due.action, move, result, context.policy)
        return answered(due, move, result, facts, context, jitter=self._jitter())

    async def _enter(self, before: Move, step: Enter, context: StepContext) -> Move:
        """Persist a changed Move, then report what the change means."""
        after = await self._persist(step.move)
        if after.phase is not before.phase:
            await self._reporter.entered(after, before, context)
        return after

    async def _note(self, move: Move, why: str) -> None:
        """Persist and log why the move waits, if the reason is new."""
        noted = move.with_status(message=why)
        if noted != move:
            log.info("move_waits", move=move.name, pod=move.spec.pod.key, why=why)
            await self._persist(noted)


_UNDISTURBED: Final = frozenset({MovePhase.PLANNED, MovePhase.RESERVED, MovePhase.NOTICED})
