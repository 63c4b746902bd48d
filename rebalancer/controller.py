"""The loop: read, decide, act, count."""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.brakes import (
    OpenBreaker,
    effective_mode,
    open_breakers,
)
from fracgpu.disruption.candidates import approved, shown
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardHeat, Heat, blindness
from fracgpu.disruption.move import Plan
from fracgpu.disruption.planner import advance_all, cards_to_avoid, cards_to_cordon, plan_moves
from fracgpu.disruption.policy import MakeRoom, Mode, RebalancerPolicy
from fracgpu.request.need import Strategy
from fracgpu.state.move_object import ENDED, Move, MovePhase, MoveSpec, new_move
from kube.errors import KubeError
from process.clock import Clock, wait_at_most
from rebalancer.cluster_cache import ClusterCache
from rebalancer.decisions import DecisionLog
from rebalancer.event_reporter import EventReporter
from rebalancer.metrics import RebalancerMetrics, timed
from rebalancer.moves.cordons import Cordons, DesiredCordons
from rebalancer.moves.executor import MoveExecutor
from rebalancer.moves.janitor import Janitor
from rebalancer.moves.steps import StepContext
from rebalancer.moves.store import MoveStore, MovesUnreadable
from rebalancer.usage.measured import LoadRecorder, Measured, unmeasured
from rebalancer.usage.prometheus import QueryError, QueryFailed

log = structlog.get_logger()

_RECOMMENDED_FOR: Final = timedelta(hours=1)  # then it is recommended again


class UsageSource(Protocol):
    """What the controller needs of :class:`rebalancer.usage.measured.MeasuredUsage`."""

    def observe(
        self, cards: Collection[CardUuid], policy: RebalancerPolicy
    ) -> Awaitable[Measured]: ...


class PolicySource(Protocol):
    """What the controller needs of :class:`component.config_watcher.ConfigWatcher`."""

    @property
    def value(self) -> RebalancerPolicy: ...

    @property
    def problem(self) -> str: ...


class StrategySource(Protocol):
    """The cluster's placement strategy, kept current by a config watcher."""

    @property
    def value(self) -> Strategy: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerParts:
    """The controller's parts, and the longest that all queries of one cycle may take together.

    *changed* is set on every edit of the policy, valid or not.
    """

    cache: ClusterCache
    usage: UsageSource
    config: PolicySource
    placement: StrategySource
    changed: asyncio.Event
    store: MoveStore
    executor: MoveExecutor
    janitor: Janitor
    cordons: Cordons
    reporter: EventReporter
    metrics: RebalancerMetrics
    clock: Clock
    scheduler_name: str
    queries_limit_s: float = 45.0  # three scrapes: an older reading is stale
    loads: LoadRecorder = field(default_factory=LoadRecorder)
    decisions: DecisionLog = field(default_factory=DecisionLog)


class Controller:
    """Runs only on the leader; its state is kept in the API server, not here."""

    def __init__(self, parts: ControllerParts) -> None:
        self._parts = parts
        self._heat: dict[CardUuid, CardHeat] = {}
        self._leading_since: datetime | None = None
        self._trouble = "no cycle yet"
        self._kind = ""
        self._config_problem = ""
        self._ignored_keys: tuple[str, ...] = ()
        self._breakers: tuple[OpenBreaker, ...] = ()

    def trouble(self) -> str | None:
        """Return why nothing can be moved now, for ``/readyz``; None on a standby replica."""
        return (self._trouble or None) if self._leading_since else None

    async def run(self) -> None:
        """Cycle until cancelled; a change of the policy starts the next cycle at once."""
        parts = self._parts
        while True:
            parts.changed.clear()
            with timed(parts.metrics.cycle_s, parts.clock):
                await self.cycle()
            await wait_at_most(parts.clock, parts.changed, limit_s=parts.config.value.tick_s)

    async def cycle(self) -> None:
        """Run one cycle; an error of the API server or Prometheus is left to the next cycle."""
        self._leading_since = self._leading_since or self._parts.clock.now()
        await self._report_config()
        try:
            await self._run_cycle(self._parts.config.value)
        except KubeError as error:
            self._parts.metrics.api_errors.inc()
            self._set_trouble("a request to the API server failed", detail=str(error))
        except MovesUnreadable as error:
            self._set_trouble("the record of past moves is unreadable", detail=str(error))

    async def _run_cycle(self, policy: RebalancerPolicy) -> None:
        parts = self._parts
        await parts.store.load()
        now = parts.clock.now()
        pods = parts.cache.placed_pods
        await parts.janitor.sweep(pods.values(), now=now)
        await parts.janitor.end_holds(pods, now=now)

        cards = parts.cache.cards()
        with timed(parts.metrics.query_s, parts.clock):
            measured = await self._measure(cards, policy)
        now = parts.clock.now()  # a slow Prometheus takes minutes, and cordons last for some
        before, past = self._heat, parts.store.moves
        self._heat = advance_all(before, measured.usage, past, policy=policy, now=now)
        state = parts.cache.disruption_state(
            usage=measured.usage,
            heat=self._heat,
            past=past,
            strategy=parts.placement.value,
            scheduler_name=parts.scheduler_name,
            leading_since=self._leading_since or now,
            now=now,
        )
        state = replace(state, history=parts.loads.history(past))
        await self._report_hot(state, cards, before, policy)

        context = StepContext(state=state, nodes=parts.cache.nodes, policy=policy, now=now)
        await self._step_all(context)
        state = replace(state, past=parts.store.moves)
        mode = await self._mode(state, policy, now=now)
        # In a thread: with a thousand cards it takes long enough to delay the renewal of the lease.
        await asyncio.to_thread(state.learn)
        plan = await asyncio.to_thread(
            plan_moves, state, policy=replace(policy, mode=mode), now=now
        )
        parts.decisions.write(
            state, plan, queried_at_s=measured.at_s, policy=policy, mode=mode, now=now
        )

        await self._begin_approved(context)
        for spec in plan.moves:
            await self._begin(spec, context, mode=mode)
        await self._cordon(replace(state, past=parts.store.moves), policy, now=now)
        self._count(state, plan, measured, policy, now=now)

    async def _measure(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
        """Return the usage of *cards*: unknown unless all queries are answered by the deadline."""
        parts, limit_s = self._parts, self._parts.queries_limit_s
        measured: Measured | None = None
        try:
            async with asyncio.timeout(limit_s):
                measured = await parts.usage.observe(cards, policy)
                if measured.at_s is not None:
                    await parts.loads.observe(policy, at_s=measured.at_s)
        except TimeoutError:
            if measured is None:
                why = f"a cycle's queries took more than {limit_s:g} s together"
                error = QueryFailed(QueryError.SLOW, why)
                parts.metrics.no_answer(error)
                return unmeasured(cards, error)
        return measured  # of past loads the next cycle asks again

    async def _step_all(self, context: StepContext) -> None:
        """Advance every move; one of which the API server refuses something holds up no other.

        Raises:
            KubeError: the first that it answered, once all had their turn; or it does not answer.
        """
        refused: KubeError | None = None
        for move in self._parts.store.moves:
            if move.phase in ENDED:
                continue
            try:
                await self._parts.executor.step(move, context)
            except KubeError as error:
                if error.status is None:
                    raise
                log.warning("move_not_stepped", move=move.name, error=str(error))
                refused = refused or error
        if refused is not None:
            raise refused

    async def _report_hot(
        self,
        state: DisruptionState,
        nodes: Mapping[CardUuid, str],
        before: Mapping[CardUuid, CardHeat],
        policy: RebalancerPolicy,
    ) -> None:
        """Report each card that became hot; *nodes* has its node, even if that is gone by now."""
        for card, card_heat in sorted(state.heat.items()):
            was_hot = card in before and before[card].heat is Heat.HOT
            reading = state.reading(card)
            if card_heat.heat is Heat.HOT and not was_hot and reading is not None:
                await self._parts.reporter.hot_card(
                    card,
                    node=nodes[card],
                    display=state.display(card),
                    reading=reading,
                    policy=policy,
                )

    async def _mode(
        self, state: DisruptionState, policy: RebalancerPolicy, *, now: datetime
    ) -> Mode:
        """Return the mode for new moves, which an open breaker changes; report the breakers."""
        breakers = open_breakers(state.past, policy=policy, now=now)
        self._parts.metrics.breakers(breakers)
        for breaker in breakers:
            if breaker.breaker not in {known.breaker for known in self._breakers}:
                await self._parts.reporter.breaker_opened(breaker)
        self._breakers = breakers
        return effective_mode(policy, breakers)

    async def _begin_approved(self, context: StepContext) -> None:
        """Plan what was recommended and people have approved, unless that is too long ago."""
        store, policy = self._parts.store, context.policy
        if policy.mode not in (Mode.ACTIVE, Mode.RECOMMEND):
            return
        for move in store.moves:
            lately = context.now - move.planned_at < _RECOMMENDED_FOR
            if move.phase is MovePhase.RECOMMENDED and move.approved and lately:
                begun = any(  # since: a name begins with the time
                    other.spec.approved
                    and other.spec.pod == move.spec.pod
                    and other.name > move.name
                    for other in store.moves
                )
                if begun:  # by a predecessor that came no further
                    await store.forget(move)
                    continue
                if not has_slot(move, store.moves, policy=policy):
                    return
                spec = approved(move.spec, policy=policy, now=context.now)
                planned = await store.put(new_move(spec, now=context.now))
                await self._parts.reporter.planned(planned)
                await store.forget(move)

    async def _begin(self, spec: MoveSpec, context: StepContext, *, mode: Mode) -> None:
        """Persist a new move; the next cycle continues it, once the source is cordoned."""
        parts, now = self._parts, context.now
        for_room = spec.beneficiary is not None
        if for_room and context.policy.make_room is MakeRoom.RECOMMEND and mode is Mode.ACTIVE:
            mode = Mode.RECOMMEND
        if mode is Mode.RECOMMEND and spec.approved:
            mode = Mode.ACTIVE  # people have decided it already
        # That under which the cycle runs: a breaker changes the mode for the planner alone.
        spec = structs.replace(spec, config_hash=context.policy.digest)
        if mode is Mode.ACTIVE:
            await parts.reporter.planned(await parts.store.put(new_move(spec, now=now)))
            return
        spec = shown(spec, now=now)
        if mode is Mode.RECOMMEND:
            await self._recommend(new_move(spec, now=now, phase=MovePhase.RECOMMENDED))
            return
        move = new_move(spec, now=now)
        await parts.reporter.planned(move, dry_run=True)
        await parts.executor.dry_run(move, context)

    async def _recommend(self, move: Move) -> None:
        """Show people a move, unless it is shown already."""
        shown = any(
            other.phase is MovePhase.RECOMMENDED
            and other.spec.pod == move.spec.pod
            and move.planned_at - other.planned_at < _RECOMMENDED_FOR
            for other in self._parts.store.moves
        )
        if not shown:
            await self._parts.reporter.planned(await self._parts.store.put(move), dry_run=True)

    async def _cordon(
        self, state: DisruptionState, policy: RebalancerPolicy, *, now: datetime
    ) -> None:
        cordoned: frozenset[CardUuid] = frozenset()
        avoided: frozenset[CardUuid] = frozenset()
        if policy.mode is not Mode.OFF:
            cordoned = cards_to_cordon(state, policy=policy, now=now)
            avoided = cards_to_avoid(state, cordoned=cordoned, policy=policy, now=now)
        self._parts.metrics.cordons(cordoned=len(cordoned), avoided=len(avoided))
        if policy.mode is not Mode.ACTIVE:
            return  # our cordons expire by themselves
        desired = DesiredCordons(
            cordon=cordoned,
            avoid=avoided,
            cool=frozenset(
                card
                for card, card_heat in self._heat.items()
                if card_heat.heat is Heat.COOL and state.reading(card) is not None
            ),
            lasting=timedelta(seconds=policy.cordon_s),
        )
        await self._parts.cordons.publish(self._parts.cache.nodes, desired, now=now)

    def _count(
        self,
        state: DisruptionState,
        plan: Plan,
        measured: Measured,
        policy: RebalancerPolicy,
        *,
        now: datetime,
    ) -> None:
        blind = measured.trouble or blindness(state.usage, state.cards(), policy)
        if blind:
            self._set_trouble("blind, no pod is moved", detail=blind)
        elif self._breakers and policy.mode is Mode.ACTIVE:
            why = "; ".join(str(breaker) for breaker in self._breakers)
            self._set_trouble("a circuit breaker is open, moves are only shown", detail=why)
        else:
            self._set_trouble("", detail="")
        self._parts.metrics.count(state, plan, measured, policy=policy, now=now)

    async def _report_config(self) -> None:
        config = self._parts.config
        self._parts.metrics.policy_in_use(config.value, now=self._parts.clock.now())
        if config.problem != self._config_problem:
            self._config_problem = config.problem
            if config.problem:
                await self._parts.reporter.config_refused(config.problem)
        if config.value.ignored_keys != self._ignored_keys:
            self._ignored_keys = config.value.ignored_keys
            if self._ignored_keys:
                await self._parts.reporter.settings_ignored(self._ignored_keys)

    def _set_trouble(self, trouble: str, *, detail: str) -> None:
        """Store *trouble* for ``/readyz``, and log when it begins and ends."""
        before, self._kind = self._kind, trouble
        self._trouble = f"{trouble}: {detail}" if trouble else ""
        if trouble and trouble != before:
            log.warning("moving_suspended", why=trouble, detail=detail)
        elif before and not trouble:
            log.info("moving_resumed", was=before)


def has_slot(move: Move, moves: Iterable[Move], *, policy: RebalancerPolicy) -> bool:
    """Report whether one more move may be under way; those of one plan count as one."""
    under_way = {other.spec.plan or other.name for other in moves if other.under_way}
    return len(under_way - {move.spec.plan}) < policy.max_in_flight
