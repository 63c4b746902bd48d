"""The sampling loop: one snapshot after the other, none without a reading."""

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import (
    CardMetrics,
    CardProcess,
    CardSample,
    CardSamples,
    CardsUnavailableError,
)
from deviceplugin.exporter.attribution import Attribution
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.usage import UsageSnapshot
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import FakeCards, a_card, a_pod, a_tracker
from tests.deviceplugin.exporter.test_attribution import UID, a_process
from tests.fakes.clock import NOON, VirtualClock

A = CardUuid("GPU-a")


async def a_sampler(
    cards: FakeCards,
    clock: VirtualClock,
    proc: Path,
    **told: Any,
) -> tuple[Sampler, CollectorRegistry]:
    registry = CollectorRegistry()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    sampler = Sampler(
        cards=cards,
        tracker=tracker,
        attribution=Attribution(proc),
        pods=lambda: [a_pod("one", uid=UID)],
        clock=clock,
        period_s=5.0,
        metrics=DevicePluginMetrics(registry),
        **told,
    )
    return sampler, registry


async def test_a_snapshot_joins_readings_processes_and_pods(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{'c' * 64}\n", starttime=1)
    process = CardProcess(pid=7, used_mib=Mib(64), sm_percent=20)
    cards.readings = {A: CardSample(figures=CardMetrics(gpu_percent=20), processes=(process,))}
    sampler, registry = await a_sampler(cards, clock, tmp_path)

    await sampler.collect()

    snapshot = sampler.latest()
    assert snapshot is not None
    assert snapshot.taken_at_s == NOON.timestamp()
    ((pod,),) = [use.pods for use in snapshot.cards]
    assert (pod.used_mib, pod.sm_percent) == (64.0, 20.0)
    assert registry.get_sample_value("fracgpu_last_collect_success") == 1


async def test_a_failed_reading_leaves_the_last_snapshot_to_grow_old(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    cards.readings = {A: CardSample()}
    sampler, registry = await a_sampler(cards, clock, tmp_path)
    await sampler.collect()
    before = sampler.latest()

    cards.readings = CardsUnavailableError("driver gone")
    await clock.advance(5)
    await sampler.collect()

    assert sampler.latest() is before
    assert registry.get_sample_value("fracgpu_last_collect_success") == 0


async def test_one_failing_card_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1)), VirtualClock()
    cards.readings = {A: CardSample()}
    cards.troubles = {CardUuid("GPU-b"): "lost"}
    sampler, registry = await a_sampler(cards, clock, tmp_path)

    await sampler.collect()

    snapshot = sampler.latest()
    assert snapshot is not None
    assert [use.sample is not None for use in snapshot.cards] == [True, False]
    assert registry.get_sample_value("fracgpu_last_collect_success") == 0


async def test_whoever_judges_health_or_writes_it_down_is_told_of_every_reading_that_succeeded(
    tmp_path: Path,
) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    samples_of_readings: list[CardSamples] = []
    snapshots: list[UsageSnapshot | None] = []
    made: list[Sampler] = []
    sampler, _ = await a_sampler(
        cards,
        clock,
        tmp_path,
        on_samples=samples_of_readings.append,
        on_snapshot=lambda: snapshots.append(made[0].latest()),
    )
    made.append(sampler)

    cards.readings = {A: CardSample(xids={79: 1})}
    await sampler.collect()
    cards.readings = CardsUnavailableError("driver lost")
    await sampler.collect()

    assert [dict(samples.samples[A].xids) for samples in samples_of_readings] == [{79: 1}]
    assert snapshots == [sampler.latest()] != [None]
