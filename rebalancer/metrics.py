"""Metrics of the rebalancer; every label set exists from the start, at 0."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import structlog
from prometheus_client import Counter, Gauge, Histogram

from component.metrics import ConfigMetrics
from fracgpu.cards.card import CardUuid, CordonEffect
from fracgpu.disruption.brakes import Breaker, Budgets, OpenBreaker
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
from fracgpu.state.move_object import CARRIED_OUT, Ending, MovePhase
from process.clock import Clock
from process.telemetry import Registry
from rebalancer.hindsight import SourceFate, TargetFate, outcomes
from rebalancer.moves.steps import EvictionOutcome
from rebalancer.usage.measured import Measured
from rebalancer.usage.prometheus import QueryError, QueryFailed

log = structlog.get_logger()

_PREFIX: Final = "fracgpu_rebalancer_"
_HOT_BUCKETS_S: Final = (60, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_PHASE_BUCKETS_S: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200)


# Why a cycle is blind: Prometheus did not answer, or most cards without a trusted reading are so.
BLIND_REASONS: Final = (
    *(error.value for error in QueryError),
    *(f"cards_{quality.value}" for quality in ReadingQuality if quality is not ReadingQuality.OK),
)

MOVE_MODES: Final = ("surge", "evict", "dryRun")


def move_labels(mode: str, ending: Ending) -> tuple[str, str, str]:
    """Return the labels of an ended move: its mode, how far it came, and how it ended."""
    return mode, "done" if ending in CARRIED_OUT | {Ending.DRY_RUN} else "aborted", ending.value


class RebalancerMetrics:
    """The metrics, in *registry*; one instance per process.

    The controller reports each cycle by the methods; others count by the attributes.
    """

    def __init__(self, registry: Registry) -> None:  # noqa: PLR0915 - one for each metric
        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        self.cards = gauge(
            "cards", "Cards by heat; cards that are not measured are not counted.", ("state",)
        )
        # Of cool cards there is no series, so that a large fleet costs little.
        self.card_heat = gauge(
            "card_heat", "1 for each card that is not cool, by heat.", ("node", "UUID", "state")
        )
        self.card_cordon = gauge(
            "card_cordon",
            "1 for each card that new slices are kept off, by effect.",
            ("node", "UUID", "effect"),
        )
        self.trust = gauge("card_trust", "Cards by the quality of their readings.", ("trust",))
        self.hot_cards = gauge("hot_cards", "Hot cards.", ("relievable",))
        self.hot_card_seconds = counter(
            "hot_card_seconds", "Card-seconds spent hot.", ("node", "cause")
        )
        self.hot_s = Histogram(
            _PREFIX + "hot_seconds",
            "How long cards stayed hot, as this replica saw it; counted when they cool down.",
            buckets=_HOT_BUCKETS_S,
            registry=registry,
        )
        self.decisions = counter("decisions", "What each look decided.", ("outcome", "reason"))
        self.moves = counter("moves", "Moves that ended.", ("mode", "result", "reason"))
        self.dry_run_outcomes = counter(
            "dry_run_outcomes",
            "Dry-run moves, by what happened to their source and their target without them.",
            ("source", "target"),
        )
        self.in_flight = gauge("moves_in_flight", "Moves whose replacement is not ready yet.")
        self.phase_s = Histogram(
            _PREFIX + "move_phase_seconds",
            "How long moves stay in a phase.",
            ("phase",),
            buckets=_PHASE_BUCKETS_S,
            registry=registry,
        )
        self.unavailable_s = Histogram(
            _PREFIX + "pod_unavailable_seconds",
            "From a pod's eviction until its replacement is ready.",
            buckets=_PHASE_BUCKETS_S,
            registry=registry,
        )
        self.evictions = counter("evictions", "Answers to evictions.", ("code",))
        self.dry_runs = counter("rehearsals", "Answers to dry-run evictions.", ("code",))
        self.reverts = counter("reverts", "Moves rolled back: the pod stays where it was.")
        self.misplaced = counter(
            "misplaced", "Replacements on another card than the one proven to have room."
        )
        self.ping_pongs = counter("ping_pongs", "Replacements on a card their owner had just left.")
        self.lost_pods = counter("lost_pods", "Evicted pods without a ready replacement in time.")
        self.useless = counter("ineffective_moves", "Moves that left the source as busy as before.")
        self.relief = counter(
            "relief_points", "Load that verified moves took off their source, in percent of a card."
        )
        self.cycle_s = Histogram(
            _PREFIX + "cycle_seconds", "How long one cycle takes.", registry=registry
        )
        self.query_s = Histogram(
            _PREFIX + "prometheus_query_seconds",
            "How long all queries of a cycle take.",
            registry=registry,
        )
        self.query_errors = counter(
            "prometheus_query_errors",
            "Cycles without usable answers from Prometheus.",
            ("reason",),
        )
        self.data_age_s = gauge("data_age_seconds", "Age of the newest sample.")
        self.coverage = gauge("coverage_ratio", "Share of the cards with trusted readings.")
        self.blind = gauge(
            "blind", "1 while too little is known to move anything, for this reason.", ("reason",)
        )
        self.strangers = gauge("unknown_cards", "Cards in Prometheus that no node reports.")
        self.cordoned = gauge("cordoned_cards", "Cards that new slices are kept off.")
        self.avoided = gauge(
            "avoided_cards", "Cards that new slices are kept off where they fit elsewhere."
        )
        self.budget = gauge("budget_remaining", "Moves that the budget still allows.", ("scope",))
        self.breaker_open = gauge(
            "breaker_open", "1 while this circuit breaker is open.", ("name",)
        )
        self.leader = gauge("leader", "1 while this replica leads.")
        self.config = ConfigMetrics("rebalancer", registry)
        self.config_at_s = gauge(
            "config_last_success_timestamp_seconds", "When a configuration was last accepted."
        )
        self.config_info = gauge("config_info", "The policy in use.", ("hash", "mode"))
        self.api_errors = counter("api_errors", "Cycles cut short by the API server.")
        self._create()
        self._counted_at: datetime | None = None
        self._hot_since: Mapping[CardUuid, datetime] = {}
        self._nodes: frozenset[str] = frozenset()
        self._policy: RebalancerPolicy | None = None

    def _create(self) -> None:
        outcomes = [(outcome.value,) for outcome in EvictionOutcome]
        label_sets: tuple[tuple[Counter | Gauge | Histogram, Iterable[tuple[str, ...]]], ...] = (
            (self.cards, ((heat.value,) for heat in Heat)),
            (self.trust, ((quality.value,) for quality in ReadingQuality)),
            (self.hot_cards, (("true",), ("false",))),
            (self.decisions, (("moved", ""), *(("held", reason.label) for reason in HoldReason))),
            (self.moves, (move_labels(mode, ending) for mode in MOVE_MODES for ending in Ending)),
            (self.dry_run_outcomes, ((s.value, t.value) for s in SourceFate for t in TargetFate)),
            (self.blind, ((reason,) for reason in BLIND_REASONS)),
            (self.phase_s, ((phase.name.lower(),) for phase in MovePhase)),
            (self.evictions, outcomes),
            (self.dry_runs, outcomes),
            (self.query_errors, ((error.value,) for error in QueryError)),
            (self.breaker_open, ((breaker.value,) for breaker in Breaker)),
            (self.budget, (("in_flight",), ("hour",), ("day",))),
        )
        for metric, labels in label_sets:
            for values in labels:
                metric.labels(*values)

    def no_answer(self, error: QueryFailed) -> None:
        self.query_errors.labels(error.trouble.value).inc()

    def breakers(self, open_breakers: Sequence[OpenBreaker]) -> None:
        names = {breaker.breaker for breaker in open_breakers}
        for breaker in Breaker:
            self.breaker_open.labels(breaker.value).set(breaker in names)

    def policy_in_use(self, policy: RebalancerPolicy, *, now: datetime) -> None:
        if policy != self._policy:
            self._policy = policy
            self.config_info.clear()
            self.config_info.labels(policy.digest, policy.mode.value).set(1)
            self.config_at_s.set(now.timestamp())

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
        heats = collections.Counter(card_heat.heat for card_heat in state.heat.values())
        for heat in Heat:
            self.cards.labels(heat.value).set(heats[heat])
        trusts = collections.Counter(usage.quality for usage in state.usage.values())
        for trust in ReadingQuality:
            self.trust.labels(trust.value).set(trusts[trust])
        since, self._counted_at = self._counted_at or now, now
        self._count_heat(state, policy=policy, since=since, now=now)
        self._count_outcomes(state, policy=policy, since=since, now=now)
        self.coverage.set(fresh_ratio(state.usage, state.cards()))
        why_blind = blind_reason(state, measured, policy)
        for reason in BLIND_REASONS:
            self.blind.labels(reason).set(reason == why_blind)
        self.data_age_s.set(float("nan") if measured.age_s is None else measured.age_s)
        self.strangers.set(measured.strangers)
        self.card_cordon.clear()
        for node, uuid, effect in _cordoned_cards(state):
            self.card_cordon.labels(node, uuid, effect.value).set(1)
        self.in_flight.set(sum(move.under_way for move in state.past) + len(plan.moves))
        budgets = Budgets(state.past, policy=policy, now=now)
        for move in plan.moves:
            budgets = budgets.with_(move)
        self.budget.labels("in_flight").set(max(0, policy.max_in_flight - budgets.in_flight))
        self.budget.labels("hour").set(max(0, policy.max_per_hour - budgets.this_hour))
        self.budget.labels("day").set(max(0, policy.max_per_day - budgets.today))
        self._count_decisions(plan)

    def _count_heat(
        self, state: DisruptionState, *, policy: RebalancerPolicy, since: datetime, now: datetime
    ) -> None:
        hot = [uuid for uuid, card_heat in state.heat.items() if card_heat.heat in HOT_STATES]
        relievable = 0
        # The clock may be set back, but a counter must not decrease.
        elapsed_s = max(0.0, (now - since).total_seconds())
        self._know_nodes(state)
        nodes = {uuid: name for name, node in state.snapshot.nodes.items() for uuid in node.cards}
        for uuid in hot:
            reading = state.reading(uuid)
            relievable += reading is not None and unrelievable(reading, policy) is None
            node = nodes.get(uuid, "")
            if node in self._nodes:  # it may be gone, or not shared any more
                cause = heat_cause(reading, policy)
                self.hot_card_seconds.labels(node, cause.value).inc(elapsed_s)
        self._count_relieved(frozenset(hot), state, now=now)
        self.hot_cards.labels("true").set(relievable)
        self.hot_cards.labels("false").set(len(hot) - relievable)
        self.card_heat.clear()
        for uuid, card_heat in state.heat.items():
            node = nodes.get(uuid, "")
            if card_heat.heat is not Heat.COOL and node in self._nodes:
                self.card_heat.labels(node, uuid, card_heat.heat.value).set(1)

    def cordons(self, *, cordoned: int, avoided: int) -> None:
        """Publish how many cards new slices are kept off, or would be in a dry run."""
        self.cordoned.set(cordoned)
        self.avoided.set(avoided)

    def _count_relieved(
        self, hot: frozenset[CardUuid], state: DisruptionState, *, now: datetime
    ) -> None:
        """Count how long cards were hot that no longer are; not those that are gone."""
        for uuid, since in self._hot_since.items():
            if uuid not in hot and uuid in state.heat:
                self.hot_s.observe(max(0.0, (now - since).total_seconds()))
        self._hot_since = {uuid: self._hot_since.get(uuid, now) for uuid in hot}

    def _know_nodes(self, state: DisruptionState) -> None:
        """Show each node with cards at 0 from the start, and none that is gone."""
        nodes = frozenset(
            name for name, node in state.snapshot.nodes.items() if node.cards and node.node.shared
        )
        for name in nodes - self._nodes:
            for cause in HeatCause:
                self.hot_card_seconds.labels(name, cause.value)
        for name in self._nodes - nodes:
            for cause in HeatCause:
                self.hot_card_seconds.remove(name, cause.value)
        self._nodes = nodes

    def _count_outcomes(
        self, state: DisruptionState, *, policy: RebalancerPolicy, since: datetime, now: datetime
    ) -> None:
        for outcome in outcomes(state, policy=policy, since=since, now=now):
            source, target = outcome.source.value, outcome.target.value
            self.dry_run_outcomes.labels(source, target).inc()
            log.info(
                "dry_run_outcome",
                pod=outcome.move.pod.key,
                source=outcome.move.source.card,
                source_is=source,
                target=outcome.move.target.card,
                target_would_be=target,
            )

    def _count_decisions(self, plan: Plan) -> None:
        self.decisions.labels("moved", "").inc(len(plan.moves))
        for hold in plan.held:
            self.decisions.labels("held", hold.reason.label).inc()


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
    faults = collections.Counter(
        usage.quality if usage else ReadingQuality.UNKNOWN for usage in usages
    )
    del faults[ReadingQuality.OK]
    # Of equally many the first one, in the order in which a reading is checked.
    return f"cards_{max(ReadingQuality, key=lambda quality: faults[quality]).value}"


@contextmanager
def timed(histogram: Histogram, clock: Clock) -> Iterator[None]:
    """Measure the duration of a block."""
    began_s = clock.monotonic()
    yield
    histogram.observe(clock.monotonic() - began_s)
