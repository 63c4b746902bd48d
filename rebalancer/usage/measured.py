"""Turns Prometheus series into card usage; missing, old or impossible values are not trusted."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Protocol

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import CardReading, CardUsage, ReadingQuality
from fracgpu.disruption.load_history import FULL_SPAN_RATIO, SPAN_S, LoadHistory
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import Move
from fracgpu.units import MAX_MIB, Mib
from rebalancer.usage import promql
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample, is_sane

_PERCENT: Final = 100.0
_LATE_SCRAPES: Final = 2  # age of the newest sample from which on one more must come first
_STALE_SCRAPES: Final = 3  # age from which on it says nothing of the card any more
_SCRAPED_WITHIN_S: Final = 3.0  # what reading the cards and a scrape may take besides
_FEWEST_SAMPLES: Final = 4  # of the short window: fewer say nothing of it
USUAL_INTERVAL_S: Final = 15.0  # until two samples tell
_SHORTEST_INTERVAL_S: Final = 1.0  # of a job that scrapes more often, that many have to do
_MOST_OF_PODS: Final = 1.15  # of what a card is busy; more is counted twice
_NOISE: Final = 0.02  # of what pods use, which is not sampled at the same moments
_LATEST_S: Final = 1e11  # a Unix time in milliseconds would be above it
_SLACK: Final = 1e-6  # means of floats may exceed their largest term slightly


class Querier(Protocol):
    """What this module needs of :class:`rebalancer.usage.prometheus.Prometheus`."""

    def query(self, query: str, *, at_s: float | None = None) -> Awaitable[tuple[Sample, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The usage measured in one cycle.

    Attributes:
        usage: one entry for each requested card.
        trouble: why Prometheus gave no answer; empty when it did.
        error: the kind of that trouble.
        at_s: the time that all queries were evaluated at, by the server's clock; None if the server
            did not say it.
        age_s: age of the newest sample of any card; None when there is none.
        strangers: cards that Prometheus knows and the ledger does not.
        interval_s: the longest scrape interval of any card.
    """

    usage: Mapping[CardUuid, CardUsage]
    trouble: str = ""
    error: QueryError | None = None
    at_s: float | None = None
    age_s: float | None = None
    strangers: int = 0
    interval_s: float = USUAL_INTERVAL_S


def unmeasured(cards: Collection[CardUuid], error: QueryFailed) -> Measured:
    """Return what is known of *cards* where Prometheus gave no answer."""
    why = f"Prometheus does not answer, {error}"
    unknown = {
        uuid: CardUsage(card=uuid, quality=ReadingQuality.UNKNOWN, why=why) for uuid in cards
    }
    return Measured(usage=unknown, trouble=str(error), error=error.trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """The answers of one cycle, as of one time: by card UUID, pods by card UUID and pod UID."""

    at_s: float
    interval_s: Mapping[str, float]
    age_s: Mapping[str, float]
    collect_age_s: Mapping[str, float]
    samples: Mapping[str, float]
    peak: Mapping[str, float]
    level: Mapping[str, float]
    slow_level: Mapping[str, float]
    fast_hot: Mapping[str, float]
    slow_hot: Mapping[str, float]
    history: Mapping[str, float]
    free_mib: Mapping[str, float]
    latest: Mapping[str, float]
    busy_changes: Mapping[str, float]
    power_changes: Mapping[str, float]
    active: Mapping[str, float]
    unchanged: frozenset[str]
    repeating: frozenset[str]
    pod_mean: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pod_samples: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pod_overuse: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def scraped_every_s(self, uuid: str) -> float:
        """The scrape interval of a card."""
        return self.interval_s.get(uuid, USUAL_INTERVAL_S)

    def expected(self, uuid: str, window_s: float) -> float:
        """How many samples of a card a window should have."""
        return window_s / self.scraped_every_s(uuid)


class MeasuredUsage:
    """Sends all queries of one cycle as of one time, and validates the answers."""

    def __init__(
        self,
        prometheus: Querier,
        *,
        on_trouble: Callable[[QueryFailed], None] = lambda _: None,
    ) -> None:
        self._prometheus = prometheus
        self._on_trouble = on_trouble
        self._asked_at_s: float | None = None

    async def observe(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
        """Return the usage of *cards*; errors of Prometheus are in the result, never raised."""
        try:
            answers = await self._ask_all(policy)
        except QueryFailed as error:
            self._on_trouble(error)
            return unmeasured(cards, error)
        usage = {uuid: _judge(uuid, answers, policy) for uuid in cards}
        ages = [age for uuid, age in answers.age_s.items() if CardUuid(uuid) in cards]
        return Measured(
            usage=usage,
            at_s=answers.at_s,
            age_s=min(ages, default=None),
            strangers=sum(CardUuid(uuid) not in cards for uuid in answers.age_s),
            interval_s=max(answers.interval_s.values(), default=USUAL_INTERVAL_S),
        )

    async def _ask_all(self, policy: RebalancerPolicy) -> _Answers:
        clock = await self._prometheus.query(promql.SERVER_TIME)
        if not clock or not is_sane(clock[0].value, low=1, high=_LATEST_S):
            raise QueryFailed(QueryError.GARBLED, "its answer to time() is not a time")
        at_s, before_s = clock[0].value, self._asked_at_s
        self._asked_at_s = at_s
        if before_s is not None and at_s <= before_s:
            raise QueryFailed(QueryError.FROZEN, f"time() was {before_s:.3f} and is {at_s:.3f}")
        latest = await self._by_card(promql.BUSY, at_s)
        windows = policy.fast_window_s, policy.forecast_window_s
        interval_s = intervals(
            [await self._prometheus.query(promql.interval(each), at_s=at_s) for each in windows]
        )
        longest_s = max(interval_s.values(), default=USUAL_INTERVAL_S)
        collect_age = await self._prometheus.query(promql.COLLECT_AGE, at_s=at_s)
        unchanged, repeating = _unchanged(
            latest,
            await self._prometheus.query(promql.lately_busy_changes(longest_s), at_s=at_s),
            await self._prometheus.query(promql.lately_power_changes(longest_s), at_s=at_s),
            dated={_target(sample) for sample in collect_age},
        )
        return _Answers(
            at_s=at_s,
            interval_s=interval_s,
            age_s=await self._by_card(promql.AGE, at_s),
            collect_age_s=_oldest(collect_age),
            samples=await self._by_card(promql.samples(policy), at_s),
            peak=await self._by_card(promql.peak(policy), at_s),
            level=await self._by_card(promql.level(policy), at_s),
            slow_level=await self._by_card(promql.slow_level(policy), at_s),
            fast_hot=await self._by_card(promql.fast_hot(policy), at_s),
            slow_hot=await self._by_card(promql.slow_hot(policy), at_s),
            history=await self._by_card(promql.history(policy), at_s),
            free_mib=await self._by_card(promql.FREE_MIB, at_s),
            latest=latest,
            busy_changes=await self._by_card(promql.busy_changes(policy), at_s),
            power_changes=await self._by_card(promql.power_changes(policy), at_s),
            active=await self._by_card(promql.active(policy), at_s),
            unchanged=unchanged,
            repeating=repeating,
            pod_mean=await self._by_pod(promql.pod_mean(policy), at_s),
            pod_samples=await self._by_pod(promql.pod_samples(policy), at_s),
            pod_overuse=await self._by_pod(promql.POD_OVERUSE, at_s),
        )

    async def _by_card(self, query: str, at_s: float) -> dict[str, float]:
        found = await self._prometheus.query(query, at_s=at_s)
        return {
            sample.labels["UUID"]: sample.value for sample in found if sample.labels.get("UUID")
        }

    async def _by_pod(self, query: str, at_s: float) -> dict[str, dict[str, float]]:
        found = await self._prometheus.query(query, at_s=at_s)
        by_card: dict[str, dict[str, float]] = {}
        for sample in found:
            card, pod = sample.labels.get("UUID"), sample.labels.get("pod_uid")
            if card and pod:
                by_card.setdefault(card, {})[pod] = sample.value
        return by_card


_Job = tuple[str, str]
_Target = tuple[_Job, str]


def intervals(answers: Sequence[Sequence[Sample]]) -> Mapping[str, float]:
    """Return the scrape interval of each card, from those measured in several windows.

    A window in which scrapes failed measures too much, and a single exporter may lack samples: the
    shortest median of a scrape job counts for all of its cards, and of two jobs the quicker one.
    """
    of_job: dict[_Job, float] = {}
    jobs: dict[str, set[_Job]] = {}
    for samples in answers:
        measured: dict[_Job, list[float]] = {}
        for sample in samples:
            job, uuid = _job(sample), sample.labels.get("UUID", "")
            if uuid and is_sane(sample.value, low=0, high=_LATEST_S):
                measured.setdefault(job, []).append(sample.value)
                jobs.setdefault(uuid, set()).add(job)
        for job, values in measured.items():
            of_job[job] = min(of_job.get(job, _LATEST_S), median(values))
    return {
        uuid: max(_SHORTEST_INTERVAL_S, min(of_job[job] for job in names))
        for uuid, names in jobs.items()
    }


def _judge(uuid: CardUuid, answers: _Answers, policy: RebalancerPolicy) -> CardUsage:
    for judge in (_age_fault, _coverage_fault, _value_fault, _flat_fault):
        fault = judge(uuid, answers, policy)
        if fault is not None:
            trust, why = fault
            return CardUsage(card=uuid, quality=trust, why=why)
    return CardUsage(card=uuid, quality=ReadingQuality.OK, reading=_reading(uuid, answers, policy))


_Fault = tuple[ReadingQuality, str]


def _age_fault(uuid: CardUuid, answers: _Answers, _: RebalancerPolicy) -> _Fault | None:
    age_s = answers.age_s.get(uuid)
    if age_s is None:
        return ReadingQuality.UNKNOWN, "no sample of a card"
    stale_after_s = _STALE_SCRAPES * answers.scraped_every_s(uuid) + _SCRAPED_WITHIN_S
    if not is_sane(age_s, low=-stale_after_s, high=stale_after_s):
        return ReadingQuality.STALE, "the newest sample of a card is too old"
    # Only our own exporter reports when it last read its cards; see _unchanged for others.
    read_s = age_s + answers.collect_age_s.get(uuid, 0.0)
    if not is_sane(read_s, low=-stale_after_s, high=stale_after_s):
        return ReadingQuality.STALE, "an exporter serves old readings, or its clock is wrong"
    return None


def _coverage_fault(uuid: CardUuid, answers: _Answers, policy: RebalancerPolicy) -> _Fault | None:
    interval_s = answers.scraped_every_s(uuid)
    longest_s = policy.fast_window_s / _FEWEST_SAMPLES
    expected = answers.expected(uuid, policy.fast_window_s)
    if interval_s > longest_s:
        why = f"scraped every {interval_s:.0f} s; want every {longest_s:.0f} s at least"
        return ReadingQuality.PARTIAL, why
    if answers.samples.get(uuid, 0.0) < policy.coverage_ratio * expected:
        why = f"fewer samples in the short window than the {expected:.0f} of a scrape every "
        return ReadingQuality.PARTIAL, f"{why}{interval_s:.0f} s"
    return None


def _value_fault(uuid: CardUuid, answers: _Answers, _: RebalancerPolicy) -> _Fault | None:
    bounds = (
        (answers.peak, _PERCENT),
        (answers.level, _PERCENT),
        (answers.slow_level, _PERCENT),
        (answers.fast_hot, 1.0),
        (answers.slow_hot, 1.0),
        (answers.free_mib, float(MAX_MIB)),
        (answers.latest, _PERCENT),
    )
    values = [(found.get(uuid), most) for found, most in bounds]
    if any(value is None for value, _most in values):
        return ReadingQuality.PARTIAL, "a whole series of a card is missing"
    if not all(is_sane(value or 0.0, low=-_SLACK, high=most + _SLACK) for value, most in values):
        return ReadingQuality.UNKNOWN, "a value of a card is impossible"
    return None


def _flat_fault(uuid: CardUuid, answers: _Answers, _: RebalancerPolicy) -> _Fault | None:
    """Find an exporter that is scraped well and repeats an old reading.

    A load that is the same to the last digit throughout the short window is none that was measured
    anew; except that an idle card reads 0, and a saturated one 100 %. Power that is measured varies
    even then.
    """
    if answers.busy_changes.get(uuid, 0.0) or answers.power_changes.get(uuid, 0.0):
        return None
    level, has_power = answers.level[uuid], uuid in answers.power_changes
    if level <= _SLACK or (level >= _PERCENT - _SLACK and not has_power):
        return None
    return ReadingQuality.STALE, "an exporter repeats one value under load"


def _job(sample: Sample) -> _Job:
    """Return the cluster, empty if there is only one, and the scrape job that a sample is from."""
    return sample.labels.get("cluster", ""), sample.labels.get("job", "")


def _target(sample: Sample) -> _Target:
    """Return the cluster, job and instance that a sample is from."""
    return _job(sample), sample.labels.get("instance", "")


def _oldest(ages: Iterable[Sample]) -> dict[str, float]:
    """Return the largest age of each card; one that is no number stays."""
    found: dict[str, float] = {}
    for sample in ages:
        uuid = sample.labels.get("UUID", "")
        if uuid not in found or math.isnan(sample.value) or found[uuid] < sample.value:
            found[uuid] = sample.value
    return found


def _unchanged(
    latest: Mapping[str, float],
    busy: Sequence[Sample],
    power: Sequence[Sample],
    *,
    dated: Collection[_Target],
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the cards of scrape targets that have reported no change lately, and those at fault.

    An idle card may repeat itself for hours. A busy one does not, nor does any card beside it then.

    Args:
        latest: the newest sample of each card, per cent.
        busy: how often each card's busy share changed in the last scrapes.
        power: how often its power draw did.
        dated: the targets that say when they read their cards, which need not change.
    """
    cards: dict[_Target, set[str]] = {}
    changing = set(dated)
    for sample in (*busy, *power):
        cards.setdefault(_target(sample), set()).add(sample.labels.get("UUID", ""))
        if sample.value > 0:
            changing.add(_target(sample))
    measured_power = {sample.labels.get("UUID", "") for sample in power}

    def should_vary(uuid: str) -> bool:
        percent = latest.get(uuid, 0.0)
        return 0 < percent < _PERCENT or (percent > 0 and uuid in measured_power)

    unchanged = [found for target, found in cards.items() if target not in changing]
    repeating = [found for found in unchanged if any(map(should_vary, found))]
    return frozenset().union(*unchanged), frozenset().union(*repeating)


def _active_ratio(uuid: CardUuid, answers: _Answers) -> float | None:
    """Return how much of the card did work, 0..1; None where that is not measured.

    0 throughout says nothing: after some driver errors the metric is stuck there.
    """
    value = answers.active.get(uuid)
    return value / _PERCENT if value and is_sane(value, low=0, high=_PERCENT + _SLACK) else None


def _reading(uuid: CardUuid, answers: _Answers, policy: RebalancerPolicy) -> CardReading:
    interval_s = answers.scraped_every_s(uuid)
    late = answers.age_s[uuid] >= _LATE_SCRAPES * interval_s or answers.collect_age_s.get(
        uuid, 0.0
    ) >= interval_s + max(interval_s, _SCRAPED_WITHIN_S)
    expected = answers.expected(uuid, policy.forecast_window_s)
    # A pod with impossible figures is treated as unmeasured: it is neither moved nor counted. Sums
    # over a pod's containers may exceed 100 % slightly.
    pods = {
        pod_uid: _ratio(mean)
        for pod_uid, mean in answers.pod_mean.get(uuid, {}).items()
        if is_sane(mean, low=-_SLACK, high=2 * _PERCENT)
    }
    if _counted_twice(uuid, pods, answers, policy):
        pods = {}
    return CardReading(
        level_ratio=_ratio(answers.level[uuid]),
        slow_level_ratio=_ratio(answers.slow_level[uuid]),
        fast_hot_ratio=answers.fast_hot[uuid],
        slow_hot_ratio=answers.slow_hot[uuid],
        history_ratio=min(1.0, answers.history.get(uuid, 0.0) / expected),
        free_mib=Mib(int(answers.free_mib[uuid])),
        latest_ratio=_ratio(answers.latest[uuid]),
        active_ratio=_active_ratio(uuid, answers),
        repeating=late or uuid in answers.repeating,
        unchanged=uuid in answers.unchanged,
        pods=pods,
        overusers=frozenset(answers.pod_overuse.get(uuid, ())),
    )


def _counted_twice(
    uuid: CardUuid,
    pods: Mapping[str, float],
    answers: _Answers,
    policy: RebalancerPolicy,
) -> bool:
    """Report whether the pods of a card use more than the card, which cannot be.

    A pod that has not run throughout the long window counts as much as it has of it.
    """
    expected = answers.expected(uuid, policy.slow_window_s)
    samples = answers.pod_samples.get(uuid, {})
    used = sum(
        use * min(1.0, samples.get(pod_uid, 0.0) / expected) for pod_uid, use in pods.items()
    )
    return used > _MOST_OF_PODS * _ratio(answers.slow_level[uuid]) + _NOISE


def _ratio(percent: float) -> float:
    return min(1.0, max(0.0, percent / _PERCENT))


_AT_ONCE: Final = 4  # spans in one cycle

# What each pod used, and whether its card was full.
_Span = Mapping[str, tuple[float, bool]]


class LoadRecorder:
    """Keeps what every pod used, span by span, over the memory window: the history of loads.

    Each span is asked for once, as of its end, so that a process which has just started reads what
    was before it: a few spans in each cycle, the newest first.

    Args:
        prometheus: is asked; without it nothing is ever remembered.
    """

    def __init__(self, prometheus: Querier | None = None) -> None:
        self._prometheus = prometheus
        self._spans: dict[int, _Span] = {}

    async def read_all(self, policy: RebalancerPolicy, *, at_s: float) -> None:
        """Ask for all spans at once, for one look."""
        for _ in range(-(-round(policy.memory_window_s / SPAN_S) // _AT_ONCE)):
            await self.observe(policy, at_s=at_s)

    async def observe(self, policy: RebalancerPolicy, *, at_s: float) -> None:
        """Ask for the spans that are missing; one that cannot be read is asked for again."""
        if self._prometheus is None:
            return
        wanted = self._wanted(int(at_s // SPAN_S), policy)
        missing = [number for number in wanted if number not in self._spans]
        for number in missing[:_AT_ONCE]:
            try:
                self._spans[number] = await _read(self._prometheus, number * SPAN_S)
            except QueryFailed:
                return  # the cycle's own queries say so

    def keep(self, number: int, span: _Span, policy: RebalancerPolicy) -> None:
        """Remember a span that is known already."""
        self._wanted(number, policy)
        self._spans[number] = span

    def _wanted(self, newest: int, policy: RebalancerPolicy) -> range:
        """Return the spans of the memory window, the newest first; forget all others."""
        wanted = range(newest, newest - round(policy.memory_window_s / SPAN_S), -1)
        self._spans = {number: span for number, span in self._spans.items() if number in wanted}
        return wanted

    def history(self, past: Sequence[Move]) -> LoadHistory:
        """Return what is remembered; a replacement has the history of the pods before it."""
        numbers = sorted(number for number, span in self._spans.items() if span)
        if not numbers:
            return LoadHistory()
        numbers = list(range(numbers[0], numbers[-1] + 1))
        uids = {uid for span in self._spans.values() for uid in span}
        rows = {uid: row for row, uid in enumerate(sorted(uids))}
        busy = np.full((len(rows), len(numbers)), np.nan)
        full = np.zeros(busy.shape, np.bool_)
        for column, number in enumerate(numbers):
            for uid, (value, is_full) in self._spans.get(number, {}).items():
                busy[rows[uid], column], full[rows[uid], column] = value, is_full
        for move in sorted(past, key=lambda move: move.planned_at):
            before, after = rows.get(move.spec.pod.uid), rows.get(move.replacement_uid)
            if before is not None and after is not None:
                unknown = np.isnan(busy[after])
                busy[after, unknown] = busy[before, unknown]
                full[after, unknown] = full[before, unknown]
        return LoadHistory(rows=rows, busy=busy, full=full)


async def _read(prometheus: Querier, end_s: float) -> _Span:
    full = {
        sample.labels["UUID"]: sample.value >= _PERCENT * FULL_SPAN_RATIO
        for sample in await prometheus.query(promql.CARD_SPAN, at_s=end_s)
        if sample.labels.get("UUID")
    }
    found: dict[str, tuple[float, bool]] = {}
    for sample in await prometheus.query(promql.POD_SPAN, at_s=end_s):
        card, pod = sample.labels.get("UUID"), sample.labels.get("pod_uid")
        if card and pod and is_sane(sample.value, low=0, high=2 * _PERCENT):
            found[pod] = min(1.0, sample.value / _PERCENT), full.get(card, False)
    return found
