"""Metrics of the scheduler extender."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from component.metrics import ConfigMetrics
from fracgpu import names
from fracgpu.placement.policies.least_waste.library import LIBRARY
from fracgpu.state.ledger import ReservationState

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


_READ = (
    names.ASSIGNMENT,
    names.NODE_CARDS,
    names.NODE_CORDONS,
    names.NODE_HEAT,
    names.NODE_FOREIGN,
    names.NODE_USED,
    names.NODE_LOAD_TIME,
)


class Verb(Enum):
    """The verbs of a scheduler extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class RequestOutcome(Enum):
    """How a request ended, from the caller's point of view."""

    ANSWERED = "answered"
    MALFORMED = "malformed"
    NOT_READY = "not_ready"
    NOT_LEADING = "not_leading"  # another replica is the one to ask
    FAILED = "failed"


class BindOutcome(Enum):
    """How a Binding ended."""

    BOUND = "bound"
    REFUSED = "refused"  # the pod or the cards are not as the request assumes
    CONFLICT = "conflict"  # the pod kept changing
    UNKNOWN = "unknown"  # the API server did not answer
    FAILED = "failed"  # the API server refused
    FENCED = "fenced"  # the API server knows another leader


class ClaimOutcome(Enum):
    """What became of the attempt to give a pod its claim, where kube-scheduler allocates cards."""

    LISTED = "listed"
    OPEN = "open"  # no card fits
    REPLACED = "replaced"  # kube-scheduler could take none of the cards
    TAKEN = "taken"  # somebody else made a claim of that name
    REFUSED = "refused"  # no claim can be made for the pod
    WITHHELD = "withheld"  # by the quota of the namespace
    FAILED = "failed"  # the API server refused, or did not answer
    REMOVED = "removed"  # its pod is gone


class WaitReason(Enum):
    """What a pod waits for; a metric label. Where nodes differ, the nearest to a fit counts."""

    LIMITS = "limits"
    MEMORY = "memory"
    COMPUTE = "compute"
    TOGETHER = "together"
    OTHER_CARDS = "other_cards"
    OUT_OF_SERVICE = "out_of_service"
    OTHER_WIRING = "other_wiring"
    NO_CARDS = "no_cards"
    GANG = "gang"  # other pods of its gang, or room for all of them
    REQUEST = "request"  # it cannot be read
    NOT_CARDS = "not_cards"  # kube-scheduler refuses the nodes for something else
    NOT_TRIED = "not_tried"  # kube-scheduler has not tried to place it, or failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many pods wait, and for how many seconds the first of them has."""

    pods: int = 0
    longest_s: float = 0.0


class RequestActivity:
    """Counts requests; a context of it is one request, from its first bytes to its answer.

    Attributes:
        begun: how many requests there have been.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._under_way = 0
        self._none_left = asyncio.Event()

    def __enter__(self) -> None:
        self.begun += 1
        self._under_way += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._none_left.set()

    @property
    def under_way(self) -> bool:
        """Whether a request waits for its answer."""
        return self._under_way > 0

    async def gap(self, *, limit_s: float) -> None:
        """Wait until a request is answered and no other is under way; return after *limit_s*."""
        self._none_left.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._none_left.wait()
        except TimeoutError:
            return


class SchedulerMetrics:
    """The extender's metrics, in the given registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.config = ConfigMetrics("scheduler", registry)
        self._requests = Counter(
            "fracgpu_scheduler_requests_total",
            "Requests of kube-scheduler by verb and outcome.",
            ["verb", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "fracgpu_scheduler_request_seconds",
            "Time from a request's last byte to its answer; for bind with the wait for its group.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._binds = Counter(
            "fracgpu_scheduler_binds_total",
            "Bindings by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._claims = Counter(
            "fracgpu_scheduler_claims_total",
            "Claims written for pods, by outcome; none but with `wiring: claims`.",
            ["outcome"],
            registry=registry,
        )
        self._lapsed = Counter(
            "fracgpu_scheduler_assumptions_lapsed_total",
            "Placements that were never confirmed.",
            registry=registry,
        )
        self._assumed = Gauge(
            "fracgpu_scheduler_assumptions",
            "Placements whose Binding is not confirmed yet.",
            registry=registry,
        )
        self._leads = Gauge(
            "fracgpu_scheduler_leader",
            "1 while this replica is the active one.",
            registry=registry,
        )
        self._longest_pause = Gauge(
            "fracgpu_scheduler_event_loop_longest_pause_seconds",
            "Longest time in the last one to two minutes in which no request was processed.",
            registry=registry,
        )
        compiled = Gauge(
            "fracgpu_scheduler_fill_compiled",
            "1 if the library of least-waste is loaded; 0: its pods are placed by pack.",
            registry=registry,
        )
        compiled.set(LIBRARY.problem is None)
        self._skew = Gauge(
            "fracgpu_scheduler_kube_scheduler_skew",
            "Minor versions by which the kube-scheduler in this pod is newer than the API server; "
            "0 and -1 are supported, NaN is unknown.",
            registry=registry,
        )
        self._skew.set(math.nan)
        self._drift = Gauge(
            "fracgpu_scheduler_ledger_drift",
            "Nodes whose cached state differed from a rebuild in the last comparison; always 0.",
            registry=registry,
        )
        self._overcommitted = Gauge(
            "fracgpu_scheduler_overbooked_cards",
            "Cards of which pods are allocated more MiB than they share; always 0.",
            registry=registry,
        )
        self._marks = Counter(
            "fracgpu_scheduler_pods_marked_total",
            "Pending pods marked, so that no earlier Binding takes effect and they are retried.",
            registry=registry,
        )
        self._unreadable = Gauge(
            "fracgpu_scheduler_unreadable_objects",
            "Pods and nodes with this annotation in an unreadable form; they count as full.",
            ["annotation"],
            registry=registry,
        )
        self._reservations = Gauge(
            "fracgpu_scheduler_reservations",
            "Reservations of Moves by state; an unreadable Move keeps its whole target.",
            ["state"],
            registry=registry,
        )
        self._given_up = Counter(
            "fracgpu_scheduler_reservations_given_up_total",
            "Pods bound elsewhere although a Move held a card for them.",
            registry=registry,
        )
        self._moves_served = Gauge(
            "fracgpu_scheduler_moves_served",
            "0 while the API server serves no Moves (moves.fracgpu.io), so that nothing is "
            "reserved.",
            registry=registry,
        )
        self._comparisons = Counter(
            "fracgpu_scheduler_cache_comparisons_total",
            "Comparisons of the cache with a rebuild from scratch.",
            registry=registry,
        )
        self._waiting = _WaitingPods(registry)
        for key in _READ:
            self._unreadable.labels(key)
        for state in ReservationState:
            self._reservations.labels(state.value)
        # Looked up here once, since each look-up by labels takes several microseconds.
        self._answered = {
            verb: self._requests.labels(verb.value, RequestOutcome.ANSWERED.value) for verb in Verb
        }
        for verb in Verb:
            self._requests.labels(verb.value, RequestOutcome.NOT_LEADING.value)
        self._seconds_of = {verb: self._seconds.labels(verb.value) for verb in Verb}
        self._binds_of = {outcome: self._binds.labels(outcome.value) for outcome in BindOutcome}

    def request(self, verb: Verb, outcome: RequestOutcome, *, took_s: float) -> None:
        if outcome is RequestOutcome.ANSWERED:
            self._answered[verb].inc()
        else:
            self._requests.labels(verb.value, outcome.value).inc()
        self._seconds_of[verb].observe(took_s)

    def bind(self, outcome: BindOutcome) -> None:
        self._binds_of[outcome].inc()

    def claim(self, outcome: ClaimOutcome) -> None:
        self._claims.labels(outcome.value).inc()

    def lapsed(self) -> None:
        self._lapsed.inc()

    def skew(self, newer_by: int) -> None:
        self._skew.set(newer_by)

    def compared(self, differing_nodes: int) -> None:
        self._comparisons.inc()
        self._drift.set(differing_nodes)

    def overcommitted(self, cards: int) -> None:
        self._overcommitted.set(cards)

    def marked(self) -> None:
        self._marks.inc()

    def gave_up_reservation(self) -> None:
        self._given_up.inc()

    def unreadable(self, annotation: str, objects: int) -> None:
        self._unreadable.labels(annotation).set(objects)

    def watch(
        self,
        *,
        assumed: Callable[[], int],
        leads: Callable[[], bool],
        moves_served: Callable[[], bool],
        reservations: Callable[[], Mapping[ReservationState, int]],
        longest_pause_s: Callable[[], float],
        waiting: Callable[[], Mapping[WaitReason, Waiting]],
    ) -> None:
        """Call these at each scrape."""
        self._longest_pause.set_function(longest_pause_s)
        self._moves_served.set_function(moves_served)
        for state in ReservationState:
            self._reservations.labels(state.value).set_function(
                partial(_count_of, reservations, state)
            )
        self._assumed.set_function(assumed)
        self._leads.set_function(leads)
        self._waiting.read = lambda: waiting() if leads() else {}


class _WaitingPods(Collector):
    """Counts the waiting pods at each scrape; there are none while this replica does not lead."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read: Callable[[], Mapping[WaitReason, Waiting]] = dict
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        pods = GaugeMetricFamily(
            "fracgpu_scheduler_waiting_pods",
            "Pods that ask for a card and wait for a node, by what keeps them waiting.",
            labels=["reason"],
        )
        longest = GaugeMetricFamily(
            "fracgpu_scheduler_longest_wait_seconds",
            "Time since the first of these pods began to wait.",
            labels=["reason"],
        )
        found = self.read()
        for reason in WaitReason:
            waiting = found.get(reason, Waiting())
            pods.add_metric([reason.value], waiting.pods)
            longest.add_metric([reason.value], waiting.longest_s)
        yield pods
        yield longest


def _count_of(
    reservations: Callable[[], Mapping[ReservationState, int]], state: ReservationState
) -> int:
    return reservations()[state]
