"""What pods did over the memory window, and what moving one would have saved had it lasted.

The history holds each pod's use in equal spans of time, and whether its card had anything left to
give: on a full card a pod is measured with less than it asks for. Load that a card cannot give
counts in full, and load above the hot line a fifth of that. A move is worth what it saves of both,
by three forecasts:

- *as it was*: every pod does in the same spans what it did. Pods that peaked together do so again.
- *by chance*: what pods do has nothing to do with each other, except for those of one owner.
- *as it is now*: every pod goes on as in the last spans.

How much each counts is read from the history itself: whether pods that varied together in its first
half did so in its second, and how well what a card's pods did an hour before predicted what they
did. Load that is foreseen badly is therefore left alone, and steady load moved at once. For a while
everything looks steady, though: in the first three hours of a history a move must also pay for what
it would cost if all pods turned out to do the same, which a card that is given more pods than the
source loses for hours. Later a move of a load that proved to be random must save more. What moves
saved in truth is read from the history as well: it says how far the next forecast is believed, and
a move counts as one that saved nothing until it is known to have saved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SPAN_S: Final = 600.0
# Mean share of its time in a span from which on a card may have been full in it, and its pods have
# asked for more.
FULL_SPAN_RATIO: Final = 0.97
_HOUR: Final = 6  # spans
_NOW: Final = 3  # spans that show what a pod does now
# A pod on a full card that has this share of its own highest use asked for that use.
_ASKED: Final = 0.5
# What the pods of a card asked for that was never seen with time left, beyond what they got.
_UNSEEN: Final = 1.1
_SURE: Final = 2  # standard errors by which what pods keep must exceed what chance explains
_PRIOR_SPANS: Final = 6  # for which the variance of all pods counts in the variance of each
_INDEPENDENT: Final = 8  # spans after which what a pod did says little of what it does
_HORIZON: Final = 18  # spans over which what a move does counts
_FEWEST_SPANS: Final = 12  # in which a common rhythm can be told from chance
_COMPARED: Final = 150  # pods, the most variable ones; all pairs of them are compared
_VARIES: Final = 4e-4  # variance above the noise of measuring
_LOST_RATIO: Final = 0.95  # mean share of its time above which a card gives less than is asked for
_DOUBT: Final = 0.06  # of a pod's deviation: what its move must save besides if its load is random
_FORESEEN: Final = 0.5  # rhythm, or how well an hour predicts the next, from which on it is not
_HOT_WEIGHT: Final = 0.2  # of load above the hot line, which is not lost
_KNOWN_AFTER: Final = 3  # spans after a move, from which on it is known what it saved
_BELIEVED: Final = 0.03  # what moves that were not made are taken to have saved, as forecast
_TINY: Final = 1e-9
_UPPER_QUARTILE: Final = 0.674  # of a normal distribution, in deviations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadHistory:
    """Every pod's use, span by span.

    Attributes:
        rows: the row of each pod, by UID.
        busy: [row, span] the pod's share of its card's time, the newest span last; NaN if unknown.
        full: [row, span] its card had hardly any time left.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    busy: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    full: Flags = field(default_factory=lambda: np.zeros((0, 0), np.bool_))


NO_HISTORY: Final = LoadHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """One pod on one card.

    Attributes:
        card: the number of its card, from 0 on.
        busy_ratio: its use lately, for a pod without history.
        full: its card has hardly any time left.
    """

    uid: str
    owner_uid: str
    card: int
    busy_ratio: float
    full: bool


class LoadModel:
    """What a card's load is expected to be, and what a move would save.

    Args:
        history: what is remembered.
        loads: every pod that is measured.
        rest: [card] load that is no pod's, or is on its way.
        line: the share of its time above which a card is hot.
    """

    def __init__(
        self, history: LoadHistory, loads: Sequence[PodLoad], rest: Floats, *, line: float
    ) -> None:
        self._line = line
        self._at = np.array([load.card for load in loads], np.int64)
        self._row = {load.uid: number for number, load in enumerate(loads)}
        self._owned: dict[str, list[int]] = {}
        for number, load in enumerate(loads):
            self._owned.setdefault(load.owner_uid, []).append(number)
        self._owner = [load.owner_uid for load in loads]
        self._demand = _demand(history, loads)
        self._mean, self._variance = _shrunk(self._demand)
        self._around = self._demand - self._demand.mean(1, keepdims=True)
        self._now = self._demand[:, -_NOW:].mean(1)
        self._rest = rest
        self.rhythm = self._common_rhythm()
        self._sums()

    def _sums(self) -> None:
        cards, spans = len(self._rest), self._demand.shape[1]
        self._was = np.repeat(self._rest[:, np.newaxis], spans, 1)
        self._expected, self._varies = self._rest.copy(), np.zeros(cards)
        self._is = self._rest.copy()
        for sums, of_pods in (
            (self._was, self._demand),
            (self._expected, self._mean),
            (self._varies, self._variance),
            (self._is, self._now),
        ):
            np.add.at(sums, self._at, of_pods)
        for rows in self._owned.values():
            for place, one in enumerate(rows):
                for other in rows[:place]:
                    if self._at[one] == self._at[other]:
                        self._varies[self._at[one]] += 2 * self._together(one, other)
        # [fewer, as many, more] and [card]: what counts of its load if each pod does what any does.
        count = np.bincount(self._at, minlength=cards) + np.array([[-1], [0], [1]])
        mean, varies = (
            (float(self._demand.mean()), float(self._demand.var())) if len(self._at) else (0.0, 0.0)
        )
        self._if_equal = self._bad_by_chance(self._rest + count * mean, count * varies)

    def expected(self, cards: NDArray[np.int64]) -> Floats:
        """Return the mean load of some cards, over the history."""
        found: Floats = self._expected[cards]
        return found

    def forecast(self, uid: str, busy_ratio: float) -> tuple[Floats, Floats]:
        """Return what the load of every card would be with a pod, and exceed a quarter of the time.

        A card is expected to do what it did on average, or does now if that is more.
        """
        pod = self._row.get(uid)
        varies = self._varies + (0.0 if pod is None else self._variance[pod])
        expected = np.maximum(self._expected, self._is) + busy_ratio
        return expected, expected + _UPPER_QUARTILE * np.sqrt(varies)

    def saved(self, uid: str, cards: NDArray[np.int64], *, grows: float = 0.0) -> Floats:
        """Return the load above the hot line that moving a pod to each of some cards saves.

        Args:
            uid: a pod that is measured.
            cards: by number.
            grows: by how much more the pod is expected to use after its move.
        """
        pod = self._row[uid]
        source = self._at[pod]
        was = self._saved_by(self._demand[pod], self._was[source], self._was[cards], grows)
        chance = self._saved_by_chance(pod, source, cards, grows)
        lasting = np.minimum(self.rhythm * was + (1 - self.rhythm) * chance, was)
        share = self._predictability(source)
        now = self._saved_by(
            self._now[[pod]], self._is[[source]], self._is[cards, np.newaxis], grows
        )
        blend = share * now + (1 - share) * lasting
        # What costs more in the long run is not done for what is so now.
        foreseen = np.where(lasting < -_TINY, np.minimum(blend, lasting), blend)
        in_step = self._in_step(pod)
        doubt = self._doubt(pod, max(share, in_step))
        found: Floats = foreseen + (1 - in_step) * self._where_equal(source, cards) - doubt
        return found

    def _in_step(self, pod: int) -> float:
        """Return how far, 0..1, a pod varies as the other pods of its owner on its card do."""
        beside = sum(
            self._together(pod, other)
            for other in self._owned[self._owner[pod]]
            if other != pod and self._at[other] == self._at[pod]
        )
        return float(min(1.0, beside / (self._variance[pod] + _TINY)))

    def _doubt(self, pod: int, foreseen: float) -> float:
        """Return what a move must save besides if hours have shown that its pod's load is random.

        It is not as far, 0..1, as it is *foreseen* or keeps a rhythm.
        """
        random = 1 - min(1.0, max(self.rhythm, foreseen) / _FORESEEN)
        hours = min(1.0, max(0.0, self._demand.shape[1] / _HORIZON - 1))
        return float(_DOUBT * hours * random * np.sqrt(self._variance[pod]))

    def _where_equal(self, source: np.int64, cards: NDArray[np.int64]) -> Floats:
        """Return what it costs, on a short history, to make a card fuller of pods than the source.

        It is what the fuller card loses if all pods do the same in the end. That counts eight times
        in the first hour and not at all from three hours on.
        """
        fewer, as_many, more = self._if_equal
        equal = as_many[source] - fewer[source] - (more[cards] - as_many[cards])
        known = min(_HORIZON, max(_HOUR, self._demand.shape[1]))
        found: Floats = ((_HORIZON / known) ** 2 - 1) * np.minimum(0.0, equal)
        return found

    def saved_since(self, uid: str, source: int, *, spans: int) -> float | None:
        """Return what a pod's move off a card has saved since; None while that is not known.

        Args:
            uid: the pod that took the place of the one that was moved.
            source: the card that it was moved off.
            spans: how many have passed since.
        """
        pod = self._row.get(uid)
        spans = min(spans, self._demand.shape[1])
        if pod is None or spans < _KNOWN_AFTER or self._at[pod] == source:
            return None
        load = self._demand[pod, -spans:]
        left, has = self._was[source, -spans:], self._was[self._at[pod], -spans:]
        relief = self._bad(left + load) - self._bad(left)
        return float((relief - (self._bad(has) - self._bad(has - load))).mean())

    def _saved_by(self, load: Floats, before: Floats, target: Floats, grows: float) -> Floats:
        """Return what a move saves in the mean of some spans.

        Args:
            load: [span] of the pod.
            before: [span] of the card that it leaves, with the pod.
            target: [card, span] of the cards that it may go to.
            grows: see `saved`.
        """
        relief = (self._bad(before) - self._bad(before - load)).mean()
        found: Floats = relief - (self._bad(target + load + grows) - self._bad(target)).mean(-1)
        return found

    def _saved_by_chance(
        self, pod: int, source: np.int64, cards: NDArray[np.int64], grows: float
    ) -> Floats:
        beside = np.zeros(len(self._rest))
        for other in self._owned[self._owner[pod]]:
            if other != pod:
                beside[self._at[other]] += 2 * self._together(pod, other)
        mean, variance = self._mean[pod], self._variance[pod]
        ends = np.append(cards, source)
        before = self._bad_by_chance(self._expected[ends], self._varies[ends])
        without = self._bad_by_chance(
            self._expected[source] - mean, self._varies[source] - variance - beside[source]
        )
        with_it = self._bad_by_chance(
            self._expected[cards] + mean + grows, self._varies[cards] + variance + beside[cards]
        )
        found: Floats = before[-1] - without - (with_it - before[:-1])
        return found

    def _bad(self, load: Floats) -> Floats:
        """Return what counts of a load: what is lost, and a part of what is above the hot line."""
        hot, lost = (np.maximum(0.0, load - line) for line in (self._line, _LOST_RATIO))
        found: Floats = _HOT_WEIGHT * hot + (1 - _HOT_WEIGHT) * lost
        return found

    def _bad_by_chance(self, mean: Floats, variance: Floats) -> Floats:
        hot, lost = (above(mean, variance, line) for line in (self._line, _LOST_RATIO))
        return _HOT_WEIGHT * hot + (1 - _HOT_WEIGHT) * lost

    def _together(self, one: int, other: int) -> float:
        return max(0.0, float((self._around[one] * self._around[other]).mean()))

    def _predictability(self, card: np.int64) -> float:
        """Return how well, 0..1, what a card's pods did an hour before predicted their load."""
        pods, spans = np.flatnonzero(self._at == card), self._demand.shape[1]
        compared = spans - _HOUR
        if compared <= 2:  # noqa: PLR2004 - a pair or two show nothing
            return 0.0
        load = self._demand[pods]
        missed = float(((load[:, _HOUR:] - load[:, :-_HOUR]) ** 2).mean(1).sum())
        varies = 2 * float(self._variance[pods].sum()) + _TINY
        return float(float(np.clip(1 - missed / varies, 0, 1)) * compared / (compared + _HOUR))

    def _common_rhythm(self) -> float:
        """Return how far, 0..1, pods of different owners that varied together still do."""
        spans = self._demand.shape[1]
        if spans < _FEWEST_SPANS:
            return 0.0
        variance = self._demand.var(1)
        most = np.argsort(-variance)[:_COMPARED]
        most = most[variance[most] > _VARIES]
        owners = np.array([self._owner[row] for row in most])
        differ = owners[:, np.newaxis] != owners[np.newaxis, :]
        first, second = (_covariance(half) for half in np.array_split(self._demand[most], 2, 1))
        return float(
            np.clip((first * second)[differ].sum() / ((first**2)[differ].sum() + _TINY), 0, 1)
        )


def belief(outcomes: Sequence[tuple[float, float]]) -> float:
    """Return how far forecasts are believed, 0..1: by what was saved beside what was forecast.

    Args:
        outcomes: of each move of which it is known: what was forecast, and what it saved.
    """
    forecast = sum(max(0.0, expected) for expected, _ in outcomes)
    saved = sum(min(expected, found) for expected, found in outcomes)
    return min(1.0, max(0.0, (saved + _BELIEVED) / (forecast + _BELIEVED)))


def above(mean: Floats, variance: Floats, line: float) -> Floats:
    """Return the mean of what a normally distributed load exceeds a line by."""
    deviation = np.sqrt(np.maximum(variance, 1e-6))
    z = (mean - line) / deviation
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    # Within 0.0003 of the distribution function.
    share = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    found: Floats = deviation * density + (mean - line) * share
    return found


def _demand(history: LoadHistory, loads: Sequence[PodLoad]) -> Floats:
    """Return [pod, span] what pods asked for, as far as that can be told."""
    spans = max(1, history.busy.shape[1])
    busy = np.full((len(loads), spans), np.nan)
    full = np.zeros((len(loads), spans), np.bool_)
    known = [
        (number, row)
        for number, load in enumerate(loads)
        if (row := history.rows.get(load.uid)) is not None
    ]
    if known and history.busy.shape[1]:
        numbers, rows = np.array(known).T
        busy[numbers], full[numbers] = history.busy[rows], history.full[rows]
    lately = np.array([load.busy_ratio for load in loads])
    never = np.isnan(busy).all(1)
    busy[never] = lately[never, np.newaxis]
    full[never] = np.array([load.full for load in loads], np.bool_)[never, np.newaxis]
    count = np.maximum(1, (~np.isnan(busy)).sum(1))
    means = np.nansum(busy, 1) / count
    busy = np.where(np.isnan(busy), means[:, np.newaxis], busy)
    highest = np.where(full, 0.0, busy).max(1, initial=0.0)[:, np.newaxis]
    asked = full & (busy >= _ASKED * highest) & (highest > 0)
    busy = np.where(asked, np.maximum(busy, highest), busy)
    found: Floats = np.where(full & (highest == 0), _UNSEEN * busy, busy)
    return found


def _shrunk(demand: Floats) -> tuple[Floats, Floats]:
    """Return the mean and variance to expect of each pod, over as long as a move's effect lasts.

    How far pods' loads differ in half of the time that is known says how far they will later: what
    passes at that pace is expected to go on passing, so that pods that all do the same in the end
    are not told apart by what they happen to do at first. A pod's own pace counts by as much as is
    known of it. The mean is drawn towards that of all pods by as much as what passes explains the
    differences between pods: else the pods that happened to rest would be taken for idle.
    """
    if not len(demand):
        return np.zeros(0), np.zeros(0)
    spans = demand.shape[1]
    mean, total = demand.mean(1), float(demand.var()) + _TINY
    lag = max(1, spans // 2)
    changed = ((demand[:, lag:] - demand[:, :-lag]) ** 2).mean(1) / 2 if spans > 1 else 0 * mean
    power = max(1.0, _HORIZON / lag)
    lasts = np.clip(1 - _drawn(changed, spans) / total, 0, 1) ** power
    variance = np.maximum(_drawn(demand.var(1), spans), (1 - lasts) * total)
    error = variance * min(1.0, _INDEPENDENT / spans)
    # Pods differ only as far as that is more than chance.
    surely = changed.mean() + _SURE * changed.std() / np.sqrt(len(changed))
    between = total * max(0.0, 1 - float(surely) / total) ** power
    keeps = between / (between + error + 1e-12)
    return mean.mean() + keeps * (mean - mean.mean()), variance


def _drawn(of_pods: Floats, spans: int) -> Floats:
    """Return what is known of each pod, drawn towards the mean of all pods: of few spans most."""
    found: Floats = (spans * of_pods + _PRIOR_SPANS * of_pods.mean()) / (spans + _PRIOR_SPANS)
    return found


def _covariance(load: Floats) -> Floats:
    around = load - load.mean(1, keepdims=True)
    found: Floats = around @ around.T / max(1, load.shape[1])
    return found
