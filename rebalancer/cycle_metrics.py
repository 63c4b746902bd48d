"""Publishes the metrics of each cycle, and logs newly held moves."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

import structlog

from fracgpu.cards.card import CardUuid, CordonEffect
from fracgpu.disruption.brakes.breakers import Breaker, OpenBreaker
from fracgpu.disruption.brakes.budgets import Budgets
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import (
    HOT_STATES,
    Heat,
    HeatCause,
    ReadingQuality,
    blindness,
    fresh_ratio,
    heat_cause,
    unrelievable,
)
from fracgpu.disruption.move import HoldReason, Plan
from fracgpu.disruption.policy import RebalancerPolicy
from process.clock import Clock
from rebalancer.config import policy_hash
from rebalancer.hindsight import Hindsight
from rebalancer.metrics import RebalancerMetrics
from rebalancer.usage.measured import Measured
from rebalancer.usage.prometheus import QueryFailed

log = structlog.get_logger()


class Observes(Protocol):
    """What this module needs of a histogram."""

    def observe(self, amount: float) -> None: ...


class CycleMetrics:
    """Metrics of the controller; remembers the last held moves, to log only new ones.

    Args:
        metrics: where it is counted.
        hindsight: the dry-run moves whose outcome is counted once it is known.
    """

    def __init__(self, metrics: RebalancerMetrics, hindsight: Hindsight | None = None) -> None:
        self._metrics = metrics
        self._hindsight = hindsight or Hindsight()
        self._held: frozenset[tuple[str, HoldReason]] = frozenset()
        self._counted_at: datetime | None = None
        self._hot_since: Mapping[CardUuid, datetime] = {}
        self._nodes: frozenset[str] = frozenset()
        self._policy: RebalancerPolicy | None = None

    @contextmanager
    def cycle(self, clock: Clock) -> Iterator[None]:
        """Measure the duration of one cycle."""
        with _timed(self._metrics.cycle_s, clock):
            yield

    @contextmanager
    def queries(self, clock: Clock) -> Iterator[None]:
        """Measure the duration of all queries of one cycle."""
        with _timed(self._metrics.query_s, clock):
            yield

    def api_error(self) -> None:
        self._metrics.api_errors.inc()

    def no_answer(self, error: QueryFailed) -> None:
        self._metrics.query_errors.labels(error.trouble.value).inc()

    def breakers(self, open_breakers: Sequence[OpenBreaker]) -> None:
        names = {breaker.breaker for breaker in open_breakers}
        for breaker in Breaker:
            self._metrics.breaker_open.labels(breaker.value).set(breaker in names)

    def leading(self) -> None:
        self._metrics.leader.set(1)

    def config(self, policy: RebalancerPolicy, *, now: datetime) -> None:
        if policy != self._policy:
            self._policy = policy
            self._metrics.set_config(
                policy_hash=policy_hash(policy), mode=policy.mode, at_s=now.timestamp()
            )

    def count(
        self,
        state: DisruptionState,
        plan: Plan,
        measured: Measured,
        *,
        policy: RebalancerPolicy,
        now: datetime,
    ) -> None:
        """Publish what one cycle observed and decided."""
        metrics = self._metrics
        metrics.set_cards(
            Counter(reading.heat for reading in state.heat.values()),
            Counter(usage.quality for usage in state.usage.values()),
        )
        self._count_heat(state, policy=policy, now=now)
        metrics.coverage.set(fresh_ratio(state.usage, state.cards()))
        metrics.set_blind(blind_reason(state, measured, policy))
        metrics.data_age_s.set(float("nan") if measured.age_s is None else measured.age_s)
        metrics.strangers.set(measured.strangers)
        metrics.cordoned.set(len(plan.cordon))
        metrics.avoided.set(len(plan.avoid))
        metrics.set_card_cordons(_cordoned_cards(state))
        under_way = sum(move.under_way for move in state.past) + len(plan.moves)
        budgets = Budgets(state.past, policy=policy, now=now)
        this_hour, today = budgets.this_hour + len(plan.moves), budgets.today + len(plan.moves)
        metrics.in_flight.set(under_way)
        metrics.budget.labels("in_flight").set(max(0, policy.max_in_flight - under_way))
        metrics.budget.labels("hour").set(max(0, policy.max_per_hour - this_hour))
        metrics.budget.labels("day").set(max(0, policy.max_per_day - today))
        self._count_decisions(plan)
        self._count_outcomes(state, policy=policy, now=now)

    def _count_heat(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
    ) -> None:
        hot = [uuid for uuid, card_heat in state.heat.items() if card_heat.heat in HOT_STATES]
        relievable = 0
        # The clock may be set back, but a counter must not decrease.
        elapsed_s = max(0.0, (now - (self._counted_at or now)).total_seconds())
        self._counted_at = now
        self._know_nodes(state)
        nodes = {uuid: name for name, node in state.snapshot.nodes.items() for uuid in node.cards}
        for uuid in hot:
            reading = state.reading(uuid)
            relievable += reading is not None and unrelievable(reading, policy) is None
            node = nodes.get(uuid, "")
            if node in self._nodes:  # it may be gone, or not shared any more
                cause = heat_cause(reading, policy)
                self._metrics.hot_card_seconds.labels(node, cause.value).inc(elapsed_s)
        self._count_relieved(frozenset(hot), state, now=now)
        self._metrics.hot_cards.labels("true").set(relievable)
        self._metrics.hot_cards.labels("false").set(len(hot) - relievable)
        self._metrics.set_card_heat(
            (node, uuid, card_heat.heat)
            for uuid, card_heat in state.heat.items()
            if card_heat.heat is not Heat.COOL
            if (node := nodes.get(uuid, "")) in self._nodes
        )

    def _count_relieved(
        self, hot: frozenset[CardUuid], state: DisruptionState, *, now: datetime
    ) -> None:
        """Count how long cards were hot that no longer are; not those that are gone."""
        for uuid, since in self._hot_since.items():
            if uuid not in hot and uuid in state.heat:
                self._metrics.hot_s.observe(max(0.0, (now - since).total_seconds()))
        self._hot_since = {uuid: self._hot_since.get(uuid, now) for uuid in hot}

    def _know_nodes(self, state: DisruptionState) -> None:
        """Show each node with cards at 0 from the start, and none that is gone."""
        nodes = frozenset(
            name for name, node in state.snapshot.nodes.items() if node.cards and node.node.shared
        )
        for name in nodes - self._nodes:
            for cause in HeatCause:
                self._metrics.hot_card_seconds.labels(name, cause.value)
        for name in self._nodes - nodes:
            for cause in HeatCause:
                self._metrics.hot_card_seconds.remove(name, cause.value)
        self._nodes = nodes

    def _count_outcomes(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
    ) -> None:
        for outcome in self._hindsight.outcomes(state, policy=policy, now=now):
            source, target = outcome.source.value, outcome.target.value
            self._metrics.dry_run_outcomes.labels(source, target).inc()
            log.info(
                "dry_run_outcome",
                pod=outcome.move.pod,
                source=outcome.move.source,
                source_is=source,
                target=outcome.move.target,
                target_would_be=target,
            )

    def _count_decisions(self, plan: Plan) -> None:
        self._metrics.decisions.labels("moved", "").inc(len(plan.moves))
        for hold in plan.held:
            self._metrics.decisions.labels("held", hold.reason.label).inc()
        held = frozenset((hold.subject, hold.reason) for hold in plan.held)
        for hold in plan.held:
            if (hold.subject, hold.reason) not in self._held:
                log.info(
                    "move_held",
                    subject=hold.subject,
                    reason=hold.reason.label,
                    text=hold.reason.value,
                    detail=hold.detail,
                )
        self._held = held


def _cordoned_cards(state: DisruptionState) -> Iterator[tuple[str, CardUuid, CordonEffect]]:
    """Yield the cards that the nodes' annotations keep new slices off, whoever wrote them."""
    for name, node in state.snapshot.nodes.items():
        for uuid, card_info in node.cards.items():
            if card_info.cordoned:
                yield name, uuid, CordonEffect.NO_SCHEDULE
            elif card_info.avoided:
                yield name, uuid, CordonEffect.PREFER_NO_SCHEDULE


def blind_reason(state: DisruptionState, measured: Measured, policy: RebalancerPolicy) -> str:
    """Return the label of why a cycle is blind; empty if it is not."""
    if measured.error is not None:
        return measured.error.value
    cards = state.cards()
    if not blindness(state.usage, cards, policy):
        return ""
    usages = (state.usage.get(card) for card in cards)
    faults = Counter(usage.quality if usage else ReadingQuality.UNKNOWN for usage in usages)
    del faults[ReadingQuality.OK]
    # Of equally many the first one, in the order in which a reading is checked.
    return f"cards_{max(ReadingQuality, key=lambda quality: faults[quality]).value}"


@contextmanager
def _timed(histogram: Observes, clock: Clock) -> Iterator[None]:
    began_s = clock.monotonic()
    yield
    histogram.observe(clock.monotonic() - began_s)
