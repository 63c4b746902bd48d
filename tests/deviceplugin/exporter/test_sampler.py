"""The collecting loop: one picture after the other, and none made up."""

from collections.abc import Callable
from pathlib import Path

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
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import FakeCards, a_board, a_card, a_pod
from tests.deviceplugin.exporter.test_attribution import UID, a_process
from tests.fakes.clock import NOON, VirtualClock

A = CardUuid("GPU-a")


async def an_exporter(
    cards: FakeCards,
    clock: VirtualClock,
    proc: Path,
    *,
    on_round: Callable[[CardSamples], None] = lambda _: None,
) -> tuple[Sampler, CollectorRegistry]:
    registry = CollectorRegistry()
    board = a_board(cards, clock)
    await board.survey()
    exporter = Sampler(
        cards=cards,
        tracker=board,
        attribution=Attribution(proc),
        pods=lambda: [a_pod("one", uid=UID)],
        clock=clock,
        period_s=5.0,
        metrics=DevicePluginMetrics(registry),
        on_round=on_round,
    )
    return exporter, registry


async def test_a_picture_joins_readings_processes_and_pods(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{'c' * 64}\n", starttime=1)
    process = CardProcess(pid=7, used_mib=Mib(64), sm_percent=20)
    cards.readings = {A: CardSample(figures=CardMetrics(gpu_percent=20), processes=(process,))}
    exporter, registry = await an_exporter(cards, clock, tmp_path)

    await exporter.collect()

    picture = exporter.latest()
    assert picture is not None
    assert picture.taken_at_s == NOON.timestamp()
    ((pod,),) = [use.pods for use in picture.cards]
    assert (pod.used_mib, pod.sm_percent) == (64.0, 20.0)
    assert registry.get_sample_value("fracgpu_last_collect_success") == 1


async def test_a_failed_reading_leaves_the_last_picture_to_grow_old(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    cards.readings = {A: CardSample()}
    exporter, registry = await an_exporter(cards, clock, tmp_path)
    await exporter.collect()
    before = exporter.latest()

    cards.readings = CardsUnavailableError("driver gone")
    await clock.advance(5)
    await exporter.collect()

    assert exporter.latest() is before
    assert registry.get_sample_value("fracgpu_last_collect_success") == 0


async def test_one_troubled_card_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1)), VirtualClock()
    cards.readings = {A: CardSample()}
    cards.troubles = {CardUuid("GPU-b"): "lost"}
    exporter, registry = await an_exporter(cards, clock, tmp_path)

    await exporter.collect()

    picture = exporter.latest()
    assert picture is not None
    assert [use.sample is not None for use in picture.cards] == [True, False]
    assert registry.get_sample_value("fracgpu_last_collect_success") == 0


async def test_after_each_picture_it_can_be_written_down(tmp_path: Path) -> None:
    cards, clock, seen = FakeCards(a_card("GPU-a")), VirtualClock(), []
    cards.readings = {A: CardSample()}
    board = a_board(cards, clock)
    await board.survey()
    exporter = Sampler(
        cards=cards,
        tracker=board,
        attribution=Attribution(tmp_path),
        pods=list,
        clock=clock,
        period_s=5.0,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        on_picture=lambda: seen.append(exporter.latest()),
    )

    await exporter.collect()
    cards.readings = CardsUnavailableError("gone")
    await exporter.collect()

    assert seen == [exporter.latest()]
    assert seen[0] is not None


async def test_whoever_judges_health_is_told_of_every_round_that_succeeded(tmp_path: Path) -> None:
    cards, clock = FakeCards(a_card("GPU-a")), VirtualClock()
    told: list[CardSamples] = []
    exporter, _ = await an_exporter(cards, clock, tmp_path, on_round=told.append)

    cards.readings = {A: CardSample(xids={79: 1})}
    await exporter.collect()
    cards.readings = CardsUnavailableError("driver lost")
    await exporter.collect()

    assert [dict(it.samples[A].xids) for it in told] == [{79: 1}]
