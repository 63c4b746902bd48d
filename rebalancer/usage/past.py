"""Asks Prometheus as of a past time, and how hot the cards were after several such looks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import CardHeat
from fracgpu.disruption.planner import advance_all
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import Move
from rebalancer.usage import promql
from rebalancer.usage.measured import Measured, MeasuredUsage, Querier
from rebalancer.usage.prometheus import Sample


class AsOf:
    """A querier for which it is another time."""

    def __init__(self, prometheus: Querier, *, at_s: float) -> None:
        self._prometheus = prometheus
        self._at_s = at_s

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        """Return the answer as of that time, to a question for the time as well."""
        if query == promql.SERVER_TIME:
            return (Sample(labels={}, value=self._at_s),)
        return await self._prometheus.query(query, at_s=self._at_s if at_s is None else at_s)


async def look_back(
    prometheus: Querier,
    cards: Collection[CardUuid],
    times: Iterable[datetime],
    *,
    past: Sequence[Move],
    policy: RebalancerPolicy,
) -> tuple[Measured, Mapping[CardUuid, CardHeat]]:
    """Measure the cards at each of *times*, in order; return the last usage and the heat then.

    A card begins as cool, or as what the past moves say of it, as in a rebalancer that has just
    started.
    """
    measured = Measured(usage={}, trouble="not measured")
    heat: Mapping[CardUuid, CardHeat] = {}
    for now in times:
        querier = AsOf(prometheus, at_s=now.timestamp())
        measured = await MeasuredUsage(querier).observe(cards, policy)
        if measured.trouble:
            return measured, heat
        heat = advance_all(heat, measured.usage, past, policy=policy, now=now)
    return measured, heat


async def server_time(prometheus: Querier) -> datetime:
    """Return the server's clock.

    Raises:
        QueryFailed: there is no answer that can be used.
    """
    (sample,) = await prometheus.query(promql.SERVER_TIME)
    return datetime.fromtimestamp(sample.value, tz=UTC)
