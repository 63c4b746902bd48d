"""Keeps what every pod used, span by span, over the memory window: the history of loads.

Each span is asked for once, as of its end, so that a process which has just started reads what
happened before it: a few spans in each cycle, the newest first.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from fracgpu.disruption.load_history import FULL_RATIO, SPAN_S, LoadHistory
from fracgpu.disruption.move import PastMove
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage import promql
from rebalancer.usage.measured import Querier
from rebalancer.usage.prometheus import QueryFailed, is_sane

_AT_ONCE: Final = 4  # spans in one cycle
_PERCENT: Final = 100.0

# What each pod used, and whether its card was full.
_Span = Mapping[str, tuple[float, bool]]


class LoadRecorder:
    """What is remembered of each span, by the number of the span since the epoch.

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

    def history(self, past: Sequence[PastMove]) -> LoadHistory:
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
        for move in sorted(past, key=lambda move: move.started_at):
            before, after = rows.get(move.move.pod_uid), rows.get(move.replacement_uid)
            if before is not None and after is not None:
                unknown = np.isnan(busy[after])
                busy[after, unknown] = busy[before, unknown]
                full[after, unknown] = full[before, unknown]
        return LoadHistory(rows=rows, busy=busy, full=full)


async def _read(prometheus: Querier, end_s: float) -> _Span:
    full = {
        sample.labels["UUID"]: sample.value >= _PERCENT * FULL_RATIO
        for sample in await prometheus.query(promql.CARD_SPAN, at_s=end_s)
        if sample.labels.get("UUID")
    }
    found: dict[str, tuple[float, bool]] = {}
    for sample in await prometheus.query(promql.POD_SPAN, at_s=end_s):
        card, pod = sample.labels.get("UUID"), sample.labels.get("pod_uid")
        if card and pod and is_sane(sample.value, low=0, high=2 * _PERCENT):
            found[pod] = min(1.0, sample.value / _PERCENT), full.get(card, False)
    return found
