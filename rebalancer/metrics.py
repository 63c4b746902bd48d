"""Metrics of the rebalancer; every label set exists from the start, at 0."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from component.metrics import ConfigMetrics
from fracgpu.cards.card import CordonEffect
from fracgpu.disruption.brakes.breakers import Breaker
from fracgpu.disruption.heat import Heat, ReadingQuality
from fracgpu.disruption.move import Ending, HoldReason
from fracgpu.disruption.policy import Mode
from fracgpu.state.move_object import MovePhase
from process.telemetry import Registry
from rebalancer.hindsight import SourceFate, TargetFate
from rebalancer.moves.evictor import EvictionOutcome
from rebalancer.usage.prometheus import QueryError

_PREFIX: Final = "fracgpu_rebalancer_"
_HOT_BUCKETS_S: Final = (60, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_PHASE_BUCKETS_S: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200)


# Why a cycle is blind: Prometheus did not answer, or most cards without a trusted reading are so.
BLIND_REASONS: Final = (
    *(error.value for error in QueryError),
    *(f"cards_{quality.value}" for quality in ReadingQuality if quality is not ReadingQuality.OK),
)

MOVE_MODES: Final = ("surge", "evict", "dryRun")
_CARRIED_OUT: Final = (Ending.RELIEVED, Ending.USELESS, Ending.UNVERIFIED, Ending.DRY_RUN)


def move_labels(mode: str, ending: Ending) -> tuple[str, str, str]:
    """Return the labels of an ended move: its mode, how far it came, and how it ended."""
    return mode, "done" if ending in _CARRIED_OUT else "aborted", ending.value


class RebalancerMetrics:
    """The metrics, in *registry*; one instance per process."""

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

    def set_cards(self, heats: Mapping[Heat, int], trusts: Mapping[ReadingQuality, int]) -> None:
        for heat in Heat:
            self.cards.labels(heat.value).set(heats.get(heat, 0))
        for trust in ReadingQuality:
            self.trust.labels(trust.value).set(trusts.get(trust, 0))

    def set_card_heat(self, cards: Iterable[tuple[str, str, Heat]]) -> None:
        """Show node, UUID and heat of the cards that are not cool, and of no others."""
        self.card_heat.clear()
        for node, uuid, heat in cards:
            self.card_heat.labels(node, uuid, heat.value).set(1)

    def set_card_cordons(self, cards: Iterable[tuple[str, str, CordonEffect]]) -> None:
        """Show node, UUID and effect of each card that is cordoned or avoided, and of no other."""
        self.card_cordon.clear()
        for node, uuid, effect in cards:
            self.card_cordon.labels(node, uuid, effect.value).set(1)

    def set_blind(self, reason: str) -> None:
        """Show why nothing is known, one of :data:`BLIND_REASONS`; empty if enough is known."""
        for known in BLIND_REASONS:
            self.blind.labels(known).set(known == reason)

    def set_config(self, *, policy_hash: str, mode: Mode, at_s: float) -> None:
        self.config_info.clear()
        self.config_info.labels(policy_hash, mode.value).set(1)
        self.config_at_s.set(at_s)
