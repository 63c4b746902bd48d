"""From series to readings: a real Prometheus with more than an hour of data of every kind."""

import math
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import ReadingQuality
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.units import Mib
from rebalancer.usage.measured import Measured, MeasuredUsage
from rebalancer.usage.prometheus import Prometheus, QueryError, QueryFailed, Sample
from simulator.envtest.prometheus import RealPrometheus
from tests.fakes.exporter import Exporter
from tests.support.backfill import Past, steady, wavering, write_blocks
from tests.support.waiting import until

POLICY: Final = RebalancerPolicy()
BUSY, POWER = "fracgpu_card_util", "fracgpu_card_power_watts"
ACTIVE, FREE = "fracgpu_card_active_util", "fracgpu_card_memory_free_mib"
POD = "fracgpu_pod_sm_util"
OVERUSE = "fracgpu_pod_gpu_memory_overused_mib"
TARGET = {"job": "fracgpu", "instance": "10.0.0.1:9400"}
FROZEN = {"job": "fracgpu", "instance": "10.0.0.2:9400"}
STEADY = {"job": "fracgpu", "instance": "10.0.0.4:9400"}
CACHED = {"job": "cached", "instance": "10.0.0.4:9400"}
SILENT = {"job": "dcgm", "instance": "10.0.0.5:9400"}


def card(
    uuid: str,
    points: Mapping[float, float],
    *,
    free: bool = True,
    watts: Mapping[float, float] | None = None,
    **more: Mapping[float, float],
) -> list[Past]:
    """Return the device series of one card, as our exporter writes them."""
    labels = {"UUID": uuid, "pod": "", **TARGET}
    lines = [
        Past(name=BUSY, labels=labels, points=points),
        Past(name=POWER, labels=labels, points=varying(points) if watts is None else watts),
        *(Past(name=name, labels=labels, points=series) for name, series in more.items()),
    ]
    if free:
        lines.append(Past(name=FREE, labels=labels, points=dict.fromkeys(points, 16000.0)))
    return [line for line in lines if line.points]


def stopped_lately(uuid: str) -> list[Past]:
    """Return the series of a card, alone behind its exporter, that stopped a minute ago."""
    labels = {"UUID": uuid, "pod": "", "job": "dcgm", "instance": "10.0.0.3:9400"}
    until_then = {ago: 40 + n % 3 for n, ago in enumerate(steady(0))}
    points = {ago: until_then[ago] if ago > 60 else 42.0 for ago in until_then}
    return [
        Past(name=BUSY, labels=labels, points=points),
        Past(name=FREE, labels=labels, points=steady(16000)),
    ]


def alone(uuid: str, value: float, target: Mapping[str, str]) -> list[Past]:
    """Return the series of a card whose readings are the same for an hour, power included."""
    labels = {"UUID": uuid, "pod": "", **target}
    return [
        Past(name=BUSY, labels=labels, points=steady(value)),
        Past(name=POWER, labels=labels, points=steady(50)),
        Past(name=FREE, labels=labels, points=steady(16000)),
    ]


def steady_lately(uuid: str, target: Mapping[str, str]) -> list[Past]:
    """Return the series of a card that has no power meter, and was as busy as now for a minute."""
    labels = {"UUID": uuid, "pod": "", **target}
    return [
        Past(name=BUSY, labels=labels, points={**wavering(97), **steady(97, since_s=60)}),
        Past(name=FREE, labels=labels, points=steady(16000)),
    ]


def varying(points: Mapping[float, float]) -> dict[float, float]:
    """Return a power draw that is never the same twice in a row."""
    return {ago: 200 + n % 7 / 10 for n, ago in enumerate(points)}


def spiky(*, every_s: float, for_s: float) -> dict[float, float]:
    return {ago: 100.0 if ago % every_s < for_s else 5.0 for ago in steady(0)}


def between_steps(end_s: float) -> float:
    """Return an age whose sample no subquery step reads, because a newer one exists by then."""
    step_s = POLICY.step_s
    return 300.0 if -(end_s - 300) % step_s >= step_s / 2 else 315.0


def an_hour(end_s: float) -> list[Past]:
    """Return the samples of one card for each case."""
    ours = {"UUID": "GPU-hot", **TARGET}
    fresh = {ago: end_s - ago for ago in steady(0)}
    return [
        *card("GPU-hot", steady(95)),
        *card("GPU-cool", steady(10)),
        *card("GPU-spiky", spiky(every_s=600, for_s=120)),
        *card("GPU-heating", {**steady(10), **steady(90, since_s=590)}),
        *card("GPU-gone", steady(95, until_s=420)),
        *card("GPU-late", steady(10, until_s=75)),
        *card("GPU-young", steady(10, since_s=240)),
        *card("GPU-gappy", steady(10, every_s=60)),
        *card("GPU-nan", {**steady(10), **steady(math.nan, since_s=60)}),
        *card("GPU-wild", {**steady(10), between_steps(end_s): 25500.0}),
        *card("GPU-no-memory", steady(10), free=False),
        # exporters that repeat themselves, and say nothing of it
        *card("GPU-flat", steady(42), watts={}),
        *card("GPU-flat-watts", steady(42), watts=steady(250)),
        *card("GPU-saturated-flat", steady(100), watts=steady(300)),
        *card("GPU-saturated", steady(100), watts={}),
        *card("GPU-idle", steady(0), watts=steady(50)),
        *stopped_lately("GPU-repeats"),
        # idle ones, of an exporter that does not say when it read them, and of one that is frozen
        *alone("GPU-idle-silent", 0, SILENT),
        *alone("GPU-idle-frozen", 0, FROZEN),
        # read anew, and the same for some scrapes; a proxy serves the second one's old readings too
        *steady_lately("GPU-busy-steady", STEADY),
        *steady_lately("GPU-busy-cached", CACHED),
        *steady_lately("GPU-busy-cached", STEADY),
        # busy, with little work
        *card("GPU-resident", steady(95), free=True, **{ACTIVE: steady(20)}),
        *card("GPU-stuck", steady(95), free=True, **{ACTIVE: steady(0)}),
        *card("GPU-was-known", steady(95), free=True, **{ACTIVE: steady(20, until_s=420)}),
        # honorLabels: false: the line of the card got the exporter's own pod name
        Past(name=BUSY, labels={"UUID": "GPU-relabelled", "pod": "exporter-x"}, points=steady(85)),
        Past(name=FREE, labels={"UUID": "GPU-relabelled", "pod": "exporter-x"}, points=steady(1)),
        Past(
            name=POWER,
            labels={"UUID": "GPU-relabelled", "pod": "exporter-x"},
            points=varying(steady(0)),
        ),
        # an exporter that is scraped well and serves the same old reading
        Past(name=BUSY, labels={"UUID": "GPU-frozen", **FROZEN}, points=steady(10)),
        Past(name=FREE, labels={"UUID": "GPU-frozen", **FROZEN}, points=steady(16000)),
        Past(name="fracgpu_collect_timestamp_seconds", labels=FROZEN, points=steady(1e9)),
        Past(name="fracgpu_collect_timestamp_seconds", labels=TARGET, points=fresh),
        Past(name="fracgpu_collect_timestamp_seconds", labels=STEADY, points=fresh),
        # pods on the hot card
        Past(name=POD, labels={**ours, "pod": "a", "pod_uid": "uid-a"}, points=steady(50)),
        Past(
            name=POD,
            labels={**ours, "pod": "b", "container": "x", "pod_uid": "uid-b"},
            points={**steady(10), **steady(40, since_s=1785)},
        ),
        Past(
            name=POD,
            labels={**ours, "pod": "b", "container": "y", "pod_uid": "uid-b"},
            points=steady(5),
        ),
        Past(name=POD, labels={**ours, "pod": "c", "pod_uid": "uid-c"}, points=steady(math.nan)),
        Past(name=OVERUSE, labels={**ours, "pod": "b", "pod_uid": "uid-b"}, points=steady(900)),
        Past(
            name=OVERUSE,
            labels={**ours, "pod": "a", "pod_uid": "uid-a"},
            points=steady(900, until_s=420),
        ),
    ]


ALL: Final = tuple(
    CardUuid(f"GPU-{name}")
    for name in (
        *("hot", "cool", "spiky", "heating", "gone", "late", "young", "gappy", "nan", "wild"),
        *("no-memory", "relabelled", "frozen", "never-seen"),
        *("flat", "flat-watts", "saturated-flat", "saturated", "idle", "repeats"),
        *("idle-silent", "idle-frozen", "busy-steady", "busy-cached"),
        *("resident", "stuck", "was-known"),
    )
)


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[Measured]:
    """Return what a rebalancer with default windows measures of that hour."""
    end_s = time.time()  # noqa: TID251 - the real server's clock
    write_blocks(tmp_path / "data", an_hour(end_s), end_s=end_s)
    async with (
        RealPrometheus.start(tmp_path, {}) as real,
        Prometheus(real.url, limit_s=60, limit_bytes=1 << 20) as prometheus,
    ):
        yield await MeasuredUsage(prometheus).observe(ALL, POLICY)


async def test_an_hour_of_a_real_prometheus_is_judged_card_by_card(measured: Measured) -> None:
    trust = {uuid.removeprefix("GPU-"): usage.quality for uuid, usage in measured.usage.items()}

    assert trust == {
        "hot": ReadingQuality.OK,
        "cool": ReadingQuality.OK,
        "spiky": ReadingQuality.OK,
        "heating": ReadingQuality.OK,
        "relabelled": ReadingQuality.OK,
        # A window over it still has values, which must not be trusted.
        "gone": ReadingQuality.UNKNOWN,
        "late": ReadingQuality.STALE,
        "frozen": ReadingQuality.STALE,
        "young": ReadingQuality.PARTIAL,
        "gappy": ReadingQuality.PARTIAL,
        "no-memory": ReadingQuality.PARTIAL,
        "nan": ReadingQuality.UNKNOWN,
        "wild": ReadingQuality.UNKNOWN,
        "never-seen": ReadingQuality.UNKNOWN,
        # What is the same to the last digit for ten minutes under load was not measured anew.
        "flat": ReadingQuality.STALE,
        "flat-watts": ReadingQuality.STALE,
        "saturated-flat": ReadingQuality.STALE,
        "saturated": ReadingQuality.OK,
        "idle": ReadingQuality.OK,
        "repeats": ReadingQuality.OK,
        # An idle card may read the same for hours; whether its exporter is frozen is another thing.
        "idle-silent": ReadingQuality.OK,
        "idle-frozen": ReadingQuality.STALE,
        "busy-steady": ReadingQuality.OK,
        "busy-cached": ReadingQuality.OK,
        "resident": ReadingQuality.OK,
        "stuck": ReadingQuality.OK,
        "was-known": ReadingQuality.OK,
    }
    assert measured.trouble == ""
    assert measured.age_s is not None
    assert 0 <= measured.age_s < 48
    assert measured.interval_s == pytest.approx(15, rel=0.05)

    _check_readings(measured)


def _check_readings(measured: Measured) -> None:
    readings = {uuid: usage.reading for uuid, usage in measured.usage.items()}
    hot, cool = readings[CardUuid("GPU-hot")], readings[CardUuid("GPU-cool")]
    spiky_card, heating = readings[CardUuid("GPU-spiky")], readings[CardUuid("GPU-heating")]
    relabelled = readings[CardUuid("GPU-relabelled")]
    assert hot and cool and spiky_card and heating and relabelled  # noqa: PT018 - for mypy

    assert hot.level_ratio == pytest.approx(0.95)
    assert (hot.fast_hot_ratio, hot.slow_hot_ratio) == (1.0, 1.0)
    assert hot.free_mib == Mib(16000)
    assert hot.overusers == {"uid-b"}  # no longer a
    assert cool.level_ratio == pytest.approx(0.1)
    assert (cool.fast_hot_ratio, cool.slow_hot_ratio) == (0.0, 0.0)
    assert cool.history_ratio > POLICY.coverage_ratio
    assert 0.1 < spiky_card.slow_hot_ratio < 0.3
    # Hot for ten minutes: the short window says so, the long one does not yet.
    assert heating.fast_hot_ratio > 0.9
    assert 0.25 < heating.slow_hot_ratio < 0.4
    assert relabelled.level_ratio == pytest.approx(0.85)

    active = {
        uuid.removeprefix("GPU-"): reading.active_ratio
        for uuid, reading in readings.items()
        if reading is not None and reading.active_ratio is not None
    }
    # At 0 under load the metric is stuck; and one that ended says nothing of now.
    assert active == {"resident": pytest.approx(0.2)}
    repeating = {uuid for uuid, reading in readings.items() if reading and reading.repeating}
    assert repeating == {"GPU-repeats", "GPU-busy-cached"}
    unchanged = {uuid for uuid, reading in readings.items() if reading and reading.unchanged}
    assert unchanged == repeating | {"GPU-idle-silent"}

    assert set(hot.pods) == {"uid-a", "uid-b"}
    assert hot.pods["uid-a"] == pytest.approx(0.5)
    # Containers add up: 40 and 5 over the long window.
    assert hot.pods["uid-b"] == pytest.approx(0.45, abs=0.01)


SHORT: Final = RebalancerPolicy(
    tick_s=1, fast_window_s=5, slow_window_s=10, forecast_window_s=10, step_s=1, coverage_ratio=0.5
)  # fmt: skip


def page(now_s: float, *, busy: float = 95) -> str:
    labels = 'UUID="GPU-a",pod=""'
    return (
        f"{BUSY}{{{labels}}} {busy + now_s % 1}\n{FREE}{{{labels}}} 16000\n"
        f"fracgpu_collect_timestamp_seconds {now_s}\n"
    )


@pytest.mark.slow
async def test_an_exporter_that_freezes_or_refuses_soon_costs_its_cards_their_trust(
    tmp_path: Path,
) -> None:
    """A live Prometheus with a scrape a second; the exporter goes through its troubles."""
    cards = [CardUuid("GPU-a")]
    async with Exporter.start() as exporter:
        exporter.text = page(time.time())  # noqa: TID251 - as an exporter would
        async with (
            RealPrometheus.start(tmp_path, {"node": exporter.address}) as real,
            Prometheus(real.url, limit_s=60, limit_bytes=1 << 20) as prometheus,
        ):
            source = MeasuredUsage(prometheus)
            qualities: list[ReadingQuality] = []

            async def trust_is(*wanted: ReadingQuality) -> bool:
                measured = await source.observe(cards, SHORT)
                if not qualities or qualities[-1] is not measured.usage[cards[0]].quality:
                    qualities.append(measured.usage[cards[0]].quality)
                return qualities[-1] in wanted

            async def trusted() -> bool:
                exporter.text = page(time.time())  # noqa: TID251 - as an exporter would
                return await trust_is(ReadingQuality.OK)

            await until(trusted, what="the card is trusted")
            # The page stays as it is: scraped well, and old.
            await until(lambda: trust_is(ReadingQuality.STALE), what="frozen")
            await until(trusted, what="the card is trusted again")
            exporter.status = 500
            await until(
                lambda: trust_is(ReadingQuality.UNKNOWN, ReadingQuality.PARTIAL), what="refusing"
            )

    assert qualities[0] is ReadingQuality.UNKNOWN
    assert qualities.count(ReadingQuality.OK) == 2


class Scripted:
    """Answers by query text; a :class:`QueryFailed` is raised."""

    def __init__(self, *, fail_on: str = "", clock: tuple[Sample, ...] | None = None) -> None:
        self.asked: list[tuple[str, float | None]] = []
        self._fail_on = fail_on
        self._clock = (Sample(labels={}, value=1.7e9),) if clock is None else clock

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        self.asked.append((query, at_s))
        if self._fail_on and self._fail_on in query:
            raise QueryFailed(QueryError.REFUSED, "HTTP 503")
        return self._clock if query == "time()" else ()


async def test_every_question_of_a_cycle_is_asked_as_of_the_servers_own_time() -> None:
    source = Scripted()

    await MeasuredUsage(source).observe(ALL, POLICY)

    assert source.asked[0] == ("time()", None)
    assert {at for _, at in source.asked[1:]} == {1.7e9}


@pytest.mark.parametrize("fail_on", ["time()", BUSY, "pod_uid"])
async def test_one_question_without_an_answer_makes_every_card_unknown(fail_on: str) -> None:
    troubles: list[QueryError] = []
    source = MeasuredUsage(
        Scripted(fail_on=fail_on), on_trouble=lambda error: troubles.append(error.trouble)
    )

    measured = await source.observe(ALL, POLICY)

    assert {usage.quality for usage in measured.usage.values()} == {ReadingQuality.UNKNOWN}
    assert set(measured.usage) == set(ALL)
    assert measured.trouble == "refused: HTTP 503"
    assert troubles == [QueryError.REFUSED]


@pytest.mark.parametrize(
    "clock", [(), (Sample(labels={}, value=math.nan),), (Sample(labels={}, value=1.7e12),)]
)
async def test_a_server_without_a_clock_is_not_believed(clock: tuple[Sample, ...]) -> None:
    measured = await MeasuredUsage(Scripted(clock=clock)).observe(ALL, POLICY)

    assert measured.trouble == "garbled: its answer to time() is not a time"


async def test_an_empty_prometheus_makes_every_card_unknown_without_trouble() -> None:
    measured = await MeasuredUsage(Scripted()).observe(ALL, POLICY)

    assert {usage.quality for usage in measured.usage.values()} == {ReadingQuality.UNKNOWN}
    assert (measured.trouble, measured.age_s) == ("", None)
