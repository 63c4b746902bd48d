"""How often cards are scraped is learnt: a real Prometheus with back-filled hours of each kind."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import ReadingQuality
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage.measured import LoadRecorder, Measured, MeasuredUsage, intervals
from rebalancer.usage.prometheus import Prometheus, Sample
from simulator.envtest.prometheus import RealPrometheus
from tests.support.backfill import Past, steady, wavering, write_blocks

POLICY: Final = RebalancerPolicy()
UTIL, FREE = "fracgpu_card_util", "fracgpu_card_memory_free_mib"
POD = "fracgpu_pod_sm_util"
COLLECTED: Final = "fracgpu_collect_timestamp_seconds"
OPERATOR: Final = {"job": "fracgpu", "instance": "10.0.0.1:9400"}
ANNOTATED: Final = {"job": "kubernetes-pods", "instance": "10.0.0.1:9400"}


def a_card(uuid: str, busy: Mapping[float, float], target: Mapping[str, str]) -> list[Past]:
    labels = {"UUID": uuid, "pod": "", **target}
    return [
        Past(name=UTIL, labels=labels, points=busy),
        Past(name=FREE, labels=labels, points=dict.fromkeys(busy, 16000.0)),
    ]


def a_pod(
    name: str, busy: Mapping[float, float], target: Mapping[str, str], *, container: str = "main"
) -> Past:
    labels = {"UUID": "GPU-a", "pod_uid": name, "container": container, **target}
    return Past(name=POD, labels=labels, points=busy)


@asynccontextmanager
async def filled(folder: Path, series: list[Past], end_s: float) -> AsyncIterator[Prometheus]:
    write_blocks(folder / "data", series, end_s=end_s)
    async with (
        RealPrometheus.start(folder, {}) as real,
        Prometheus(real.url, limit_s=60, limit_bytes=1 << 20) as prometheus,
    ):
        yield prometheus


async def observed(folder: Path, series: list[Past], *cards: str) -> Measured:
    end_s = time.time()  # noqa: TID251 - the real server's clock
    async with filled(folder, series, end_s) as prometheus:
        source = MeasuredUsage(prometheus)
        return await source.observe([CardUuid(card) for card in cards], POLICY)


@pytest.mark.parametrize("every_s", [15.0, 30.0, 60.0])
async def test_a_card_is_trusted_however_often_it_is_scraped(
    tmp_path: Path, every_s: float
) -> None:
    outage = {ago: value for ago, value in wavering(40, every_s=every_s).items() if ago > 330}
    series = [
        *a_card("GPU-a", wavering(40, every_s=every_s), OPERATOR),
        *a_card("GPU-b", wavering(40, since_s=900, every_s=every_s), OPERATOR),
        *a_card("GPU-c", wavering(40, every_s=every_s), OPERATOR),
        # Every other scrape of it fails.
        *a_card("GPU-gappy", wavering(40, every_s=2 * every_s), OPERATOR),
        *a_card("GPU-back", {**outage, **wavering(40, since_s=60, every_s=every_s)}, OPERATOR),
    ]

    measured = await observed(tmp_path, series, "GPU-a", "GPU-b", "GPU-gappy", "GPU-back")

    assert measured.interval_s == pytest.approx(every_s, rel=0.06)
    assert {card: usage.quality for card, usage in measured.usage.items()} == {
        "GPU-a": ReadingQuality.OK,
        "GPU-b": ReadingQuality.OK,
        "GPU-gappy": ReadingQuality.PARTIAL,
        "GPU-back": ReadingQuality.PARTIAL,
    }
    why = measured.usage[CardUuid("GPU-gappy")].why
    assert why.startswith("fewer samples in the short window than the ")
    full, new = (measured.usage[CardUuid(card)].reading for card in ("GPU-a", "GPU-b"))
    assert full is not None
    assert new is not None
    assert full.history_ratio > 0.9
    assert new.history_ratio == pytest.approx(0.25, abs=0.05)
    assert not full.repeating


async def test_jobs_that_scrape_differently_are_each_held_to_their_own_interval(
    tmp_path: Path,
) -> None:
    other = {"job": "dcgm", "instance": "10.0.0.2:9400"}
    series = [
        *a_card("GPU-quick", wavering(40), OPERATOR),
        *a_card("GPU-slow", wavering(40, every_s=60), other),
    ]

    measured = await observed(tmp_path, series, "GPU-quick", "GPU-slow")

    qualities = {usage.quality for usage in measured.usage.values()}
    assert qualities == {ReadingQuality.OK}


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_second_job_that_scrapes_seldom_does_not_make_readings_old(
    tmp_path: Path, *, frozen: bool
) -> None:
    """Its last scrape is as old as three of the first job's, and so is what it has of the agent."""
    end_s = time.time()  # noqa: TID251 - the real server's clock
    seldom = wavering(40, until_s=50, every_s=60)
    series = [*a_card("GPU-a", wavering(40), OPERATOR), *a_card("GPU-a", seldom, ANNOTATED)]
    for target, scrapes in ((OPERATOR, wavering(40)), (ANNOTATED, seldom)):
        read_s = {ago_s: end_s - ago_s - 4 for ago_s in scrapes}
        if frozen and target is ANNOTATED:
            read_s = dict.fromkeys(read_s, end_s - 3000)
        series.append(Past(name=COLLECTED, labels=target, points=read_s))

    measured = await observed(tmp_path, series, "GPU-a")

    usage = measured.usage[CardUuid("GPU-a")]
    assert usage.quality is (ReadingQuality.STALE if frozen else ReadingQuality.OK)
    assert measured.interval_s == pytest.approx(15, rel=0.06)
    assert not usage.is_repeating


async def test_an_interval_that_the_windows_cannot_judge_is_named(tmp_path: Path) -> None:
    measured = await observed(
        tmp_path, a_card("GPU-a", wavering(40, every_s=200), OPERATOR), "GPU-a"
    )

    usage = measured.usage[CardUuid("GPU-a")]
    assert usage.quality is ReadingQuality.PARTIAL
    assert usage.why.startswith("scraped every ")
    assert usage.why.endswith(" s; want every 150 s at least")


async def test_two_clusters_whose_jobs_and_addresses_are_the_same_are_told_apart(
    tmp_path: Path,
) -> None:
    """One store has both; the other cluster is scraped more often, and no agent there is frozen."""
    end_s = time.time()  # noqa: TID251 - the real server's clock
    ours, theirs = ({**OPERATOR, "cluster": name} for name in ("ours", "theirs"))
    slow = wavering(40, every_s=60)
    series = [
        *a_card("GPU-a", slow, ours),
        *a_card("GPU-frozen", steady(0, every_s=60), {**ours, "instance": "10.0.0.2:9400"}),
        *(line for n in range(3) for line in a_card(f"GPU-{n}", wavering(40), theirs)),
        *a_card("GPU-3", wavering(40), {**theirs, "instance": "10.0.0.2:9400"}),
        Past(name=COLLECTED, labels=ours, points={ago: end_s - ago for ago in slow}),
        *(
            Past(name=COLLECTED, labels={**labels, "instance": "10.0.0.2:9400"}, points=points)
            for labels, points in (
                (ours, dict.fromkeys(slow, end_s - 4000)),
                (theirs, {ago: end_s - ago for ago in steady(0)}),
            )
        ),
    ]

    measured = await observed(tmp_path, series, "GPU-a", "GPU-frozen")

    assert {card: usage.quality for card, usage in measured.usage.items()} == {
        "GPU-a": ReadingQuality.OK,
        "GPU-frozen": ReadingQuality.STALE,
    }


async def test_two_replicas_of_prometheus_count_as_one(tmp_path: Path) -> None:
    """A Thanos that does not know the replica label answers with the series of both."""
    end_s = time.time()  # noqa: TID251 - the real server's clock
    series = []
    for replica, until_s in (("a", 0.0), ("b", 7.0)):
        target = {**OPERATOR, "replica": replica}
        busy = wavering(70, until_s=until_s)
        series += a_card("GPU-a", busy, target)
        series += [a_pod("one", busy, target), a_pod("two", dict.fromkeys(busy, 0.0), target)]
        read_s = {ago_s: end_s - ago_s - 4 for ago_s in busy}
        series.append(Past(name=COLLECTED, labels=target, points=read_s))

    measured = await observed(tmp_path, series, "GPU-a")

    reading = measured.usage[CardUuid("GPU-a")].reading
    assert reading is not None
    assert measured.interval_s == pytest.approx(15, rel=0.06)
    assert reading.pods == pytest.approx({"one": 0.705, "two": 0.0}, abs=0.01)
    assert not reading.repeating
    assert not reading.unchanged


async def test_the_history_of_a_pods_use_is_right_where_two_jobs_scrape(tmp_path: Path) -> None:
    end_s = time.time()  # noqa: TID251 - the real server's clock
    renamed = [
        a_pod("pod", steady(value), {**ANNOTATED, "exported_container": name}, container="agent")
        for name, value in (("x", 20), ("y", 15))
    ]
    series = [
        *a_card("GPU-a", wavering(90), OPERATOR),
        a_pod("pod", steady(20), OPERATOR, container="x"),
        a_pod("pod", steady(15), OPERATOR, container="y"),
        *renamed,
    ]

    async with filled(tmp_path, series, end_s) as prometheus:
        recorder = LoadRecorder(prometheus)
        await recorder.read_all(POLICY, at_s=end_s)

    history = recorder.history(())
    assert history.busy[history.rows["pod"], -1] == pytest.approx(0.35)


async def test_a_pods_use_is_right_after_a_restart_and_where_two_jobs_scrape(
    tmp_path: Path,
) -> None:
    before = {"job": "fracgpu", "instance": "10.0.0.9:9400"}
    renamed = {**ANNOTATED, "exported_container": "main"}
    series = [
        *a_card("GPU-a", wavering(90), OPERATOR),
        *a_card("GPU-a", wavering(90), ANNOTATED),
        # The agent was restarted a quarter of an hour ago.
        a_pod("restarted", steady(40, until_s=900), before),
        a_pod("restarted", steady(40, since_s=885), OPERATOR),
        # Scraped twice; the second job has no honor_labels.
        a_pod("twice", steady(20), OPERATOR),
        a_pod("twice", steady(20), renamed, container="agent"),
        # Two containers do add up.
        a_pod("two", steady(10), OPERATOR, container="x"),
        a_pod("two", steady(15), OPERATOR, container="y"),
    ]

    measured = await observed(tmp_path, series, "GPU-a")

    reading = measured.usage[CardUuid("GPU-a")].reading
    assert reading is not None
    assert reading.pods == pytest.approx({"restarted": 0.4, "twice": 0.2, "two": 0.25}, abs=0.01)


@pytest.mark.parametrize(("second", "trusted"), [(30.0, True), (60.0, False)])
async def test_pods_that_use_more_than_their_card_are_not_believed(
    tmp_path: Path, second: float, *, trusted: bool
) -> None:
    series = [
        *a_card("GPU-a", wavering(70), OPERATOR),
        a_pod("one", steady(40), OPERATOR),
        a_pod("two", steady(second), OPERATOR),
        # It has run for a tenth of the window only: what it uses is no more than the card does.
        a_pod("young", steady(80, since_s=180), OPERATOR) if trusted else a_pod("x", {}, OPERATOR),
    ]

    measured = await observed(tmp_path, [each for each in series if each.points], "GPU-a")

    reading = measured.usage[CardUuid("GPU-a")].reading
    assert reading is not None
    assert set(reading.pods) == ({"one", "two", "young"} if trusted else set())


def test_the_shortest_median_of_a_job_counts_for_its_cards() -> None:
    def samples(**found: float) -> list[Sample]:
        return [
            Sample(labels={"UUID": uuid, "job": "j"}, value=value) for uuid, value in found.items()
        ]

    found = intervals([samples(a=30, b=60, c=31), samples(a=15, b=15, c=float("nan")), []])

    assert found == {"a": 15, "b": 15, "c": 15}
    assert intervals([samples(a=0.2)]) == {"a": 1.0}
    assert intervals([]) == {}
