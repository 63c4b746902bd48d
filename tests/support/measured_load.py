"""A Prometheus that measures what a test says its pods use, on the cards where they run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from fracgpu.disruption.policy import RebalancerPolicy
from process.clock import SystemClock
from rebalancer.usage import promql
from tests.fakes.prometheus import answering, serving

_ENOUGH: Final = 1000.0  # samples in a window
_FREE_MIB: Final = 20_000.0
_IDLE: Final = 0.05

_Rows = list[tuple[dict[str, str], float]]


class MeasuredLoad:
    """Answers the queries of a policy's windows; a load lasts as long as the test says it.

    Attributes:
        cards: every card's node.
        pods: the card of every pod that is bound.
        busy: the share of its card that a pod uses, 0..1; others use little.
        blind: while it is set, no query is answered.
    """

    def __init__(self, policy: RebalancerPolicy, cards: Mapping[str, str]) -> None:
        self.cards = cards
        self.pods: dict[str, str] = {}
        self.busy: dict[str, float] = {}
        self.blind = False
        self._hot_ratio = policy.hot_ratio
        self._answers = self._table(policy)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on loopback; yield the base address."""
        heads: list[str] = []

        async def behave(writer: asyncio.StreamWriter) -> None:
            target = heads[-1].split(" ")[1]
            query = parse_qs(urlsplit(target).query)["query"][0]
            if self.blind:
                await answering("busy", status=503)(writer)
                return
            await answering({"status": "success", "data": self._data(query)})(writer)

        async with serving(behave, heads) as (url, _):
            yield url

    def level(self, card: str) -> float:
        """Return the busy share of a card, 0..1."""
        here = [uid for uid, its in self.pods.items() if its == card]
        return min(1.0, _IDLE + sum(self.busy.get(uid, 0.0) for uid in here))

    def _data(self, query: str) -> dict[str, Any]:
        now = SystemClock().now().timestamp()
        if query == promql.SERVER_TIME:
            return {"resultType": "scalar", "result": [now, f"{now:.3f}"]}
        rows = self._answers[query]()
        result = [{"metric": labels, "value": [now, str(value)]} for labels, value in rows]
        return {"resultType": "vector", "result": result}

    def _table(self, policy: RebalancerPolicy) -> Mapping[str, Callable[[], _Rows]]:
        def constant(value: float) -> Callable[[], _Rows]:
            return lambda: self._each(lambda _: value)

        def percent() -> _Rows:
            return self._each(lambda card: 100 * self.level(card))

        def hot() -> _Rows:
            return self._each(lambda card: float(self.level(card) > self._hot_ratio))

        of_pods = self._each_pod
        means = (
            *(promql.level, promql.slow_level, promql.forecast_mean, promql.forecast_quantile),
            promql.remembered,
        )
        absent = (
            promql.COLLECT_AGE,
            promql.REMAP_FAILED,
            promql.power_changes(policy),
            promql.lately_power_changes(policy),
            promql.sm_active(policy),
            promql.engine_active(policy),
        )
        return {
            promql.AGE: constant(0.5),
            promql.FREE_MIB: constant(_FREE_MIB),
            promql.BUSY: percent,
            promql.peak(policy): percent,
            **{mean(policy): percent for mean in means},
            promql.samples(policy): constant(_ENOUGH),
            promql.history(policy): constant(_ENOUGH),
            promql.fast_hot(policy): hot,
            promql.slow_hot(policy): hot,
            promql.busy_changes(policy): constant(3),
            promql.lately_busy_changes(policy): constant(3),
            promql.pod_mean(policy): of_pods,
            promql.pod_high(policy): of_pods,
            **dict.fromkeys(absent, list),
        }

    def _each(self, value: Callable[[str], float]) -> _Rows:
        return [
            ({"UUID": card, "job": "gpu", "instance": node}, value(card))
            for card, node in self.cards.items()
        ]

    def _each_pod(self) -> _Rows:
        return [
            ({"UUID": card, "pod_uid": uid}, 100 * self.busy.get(uid, 0.0))
            for uid, card in self.pods.items()
        ]
