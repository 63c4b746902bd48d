"""Looking back: every question as of a past time, and the heat after several looks."""

from datetime import UTC, datetime, timedelta

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import Heat
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage import promql
from rebalancer.usage.past import AsOf, look_back, server_time
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CARD = CardUuid("GPU-1")
TIMES = [NOON + timedelta(seconds=15 * n) for n in range(4)]


class Scripted:
    """Answers as a Prometheus with one card, always busy, and records the times asked for."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []
        self.fails = False

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        self.asked.append(at_s)
        if self.fails:
            raise QueryFailed(QueryError.UNREACHABLE, "gone")
        if query == promql.SERVER_TIME:
            return (Sample(labels={}, value=NOON.timestamp()),)
        share = query in (promql.fast_hot(RebalancerPolicy()), promql.slow_hot(RebalancerPolicy()))
        value = 0.0 if query in (promql.AGE, promql.COLLECT_AGE) else 1.0 if share else 95.0
        return (Sample(labels={"UUID": CARD, "pod_uid": "p"}, value=value),)


async def test_every_question_is_asked_as_of_the_past_time() -> None:
    prometheus = Scripted()
    at_s = NOON.timestamp() - 3600

    (time,) = await AsOf(prometheus, at_s=at_s).query(promql.SERVER_TIME)
    await AsOf(prometheus, at_s=at_s).query(promql.AGE)
    await AsOf(prometheus, at_s=at_s).query(promql.AGE, at_s=5)

    assert time.value == at_s
    assert prometheus.asked == [at_s, 5]


async def test_a_card_is_hot_after_as_many_looks_as_the_rebalancer_needs() -> None:
    heats = []
    for count in range(1, 5):
        measured, heat = await look_back(
            Scripted(), [CARD], TIMES[:count], past=(), policy=RebalancerPolicy()
        )
        assert not measured.trouble
        heats.append(heat[CARD].heat)

    assert heats == [Heat.WARMING, Heat.HOT, Heat.HOT, Heat.HOT]


async def test_without_an_answer_it_stops_and_says_so() -> None:
    prometheus = Scripted()
    prometheus.fails = True

    measured, heat = await look_back(prometheus, [CARD], TIMES, past=(), policy=RebalancerPolicy())

    assert measured.trouble == "unreachable: gone"
    assert heat == {}
    assert len(prometheus.asked) == 1


async def test_the_servers_clock_is_what_counts() -> None:
    assert await server_time(Scripted()) == NOON
