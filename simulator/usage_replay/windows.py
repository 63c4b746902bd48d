"""What a rebalancer looks back on: the last samples of many series, and readings made of them.

The figures are those that ``rebalancer.usage.promql`` asks Prometheus for.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import CardReading, CardUsage, ReadingQuality
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.units import Mib

K = TypeVar("K", bound=Hashable)
Floats = NDArray[np.float64]

_FIRST_ROWS: Final = 64


class SampleWindow(Generic[K]):
    """The last *length* samples of each series, NaN where one is missing."""

    def __init__(self, length: int) -> None:
        self._length = max(1, length)
        self._rows: dict[K, int] = {}
        self._free: list[int] = []
        self._data: Floats = np.full((_FIRST_ROWS, self._length), np.nan)
        self._at = 0

    def push(self, samples: Mapping[K, float]) -> None:
        """Add one sample for each series; a series that is not in *samples* misses one."""
        for key in samples:
            if key not in self._rows:
                self._rows[key] = self._row()
        self._at = (self._at + 1) % self._length
        self._data[:, self._at] = np.nan
        for key, value in samples.items():
            self._data[self._rows[key], self._at] = value

    def keep(self, keys: Iterable[K]) -> None:
        """Forget every other series."""
        for key in self._rows.keys() - set(keys):
            row = self._rows.pop(key)
            self._data[row] = np.nan
            self._free.append(row)

    def last(self, count: int) -> tuple[list[K], Floats]:
        """Return all series, and their last *count* samples as rows, the newest first."""
        count = min(max(1, count), self._length)
        columns = [(self._at - back) % self._length for back in range(count)]
        keys = list(self._rows)
        return keys, self._data[np.ix_([self._rows[key] for key in keys], columns)]

    def _row(self) -> int:
        if self._free:
            return self._free.pop()
        row = len(self._rows)
        if row >= len(self._data):
            more = np.full(self._data.shape, np.nan)
            self._data = np.concatenate((self._data, more))
        return row


def samples_of(window_s: float, step_s: float) -> int:
    """Return how many samples a window holds."""
    return max(1, round(window_s / step_s))


def readings(
    cards: SampleWindow[CardUuid],
    pods: SampleWindow[tuple[CardUuid, str]],
    free_mib: Mapping[CardUuid, int],
    *,
    policy: RebalancerPolicy,
    step_s: float,
) -> dict[CardUuid, CardUsage]:
    """Return the usage of every card of which samples are remembered."""
    fast, slow, forecast = (
        samples_of(window_s, step_s)
        for window_s in (policy.fast_window_s, policy.slow_window_s, policy.forecast_window_s)
    )
    keys, short = cards.last(fast)
    _, long = cards.last(slow)
    _, longest = cards.last(forecast)
    covered = np.mean(~np.isnan(short), axis=1) >= policy.coverage_ratio
    fresh = ~np.isnan(short[:, 0])
    level, slow_level = _mean(short), _mean(long)
    fast_hot, slow_hot = _above(short, policy.hot_ratio), _above(long, policy.hot_ratio)
    history = np.sum(~np.isnan(longest), axis=1) / forecast
    uses = _uses(pods, slow)
    found: dict[CardUuid, CardUsage] = {}
    for row, card in enumerate(keys):
        if not (fresh[row] and covered[row]):
            quality = ReadingQuality.PARTIAL if fresh[row] else ReadingQuality.STALE
            found[card] = CardUsage(card=card, quality=quality, why="samples are missing")
            continue
        reading = CardReading(
            level_ratio=float(level[row]),
            slow_level_ratio=float(slow_level[row]),
            fast_hot_ratio=float(fast_hot[row]),
            slow_hot_ratio=float(slow_hot[row]),
            history_ratio=float(history[row]),
            free_mib=Mib(max(0, free_mib.get(card, 0))),
            latest_ratio=float(short[row, 0]),
            pods=uses.get(card, {}),
        )
        found[card] = CardUsage(card=card, quality=ReadingQuality.OK, reading=reading)
    return found


def _uses(pods: SampleWindow[tuple[CardUuid, str]], slow: int) -> dict[CardUuid, dict[str, float]]:
    keys, long = pods.last(slow)
    means = _mean(long)
    found: dict[CardUuid, dict[str, float]] = {}
    for row, (card, uid) in enumerate(keys):
        if not np.isnan(means[row]):
            found.setdefault(card, {})[uid] = float(means[row])
    return found


def _mean(rows: Floats) -> Floats:
    count = np.sum(~np.isnan(rows), axis=1)
    total: Floats = np.nansum(rows, axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _above(rows: Floats, line: float) -> Floats:
    count = np.maximum(np.sum(~np.isnan(rows), axis=1), 1)
    found: Floats = np.sum(rows > line, axis=1) / count  # NaN is never above
    return found
