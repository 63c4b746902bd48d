"""The node's annotations of load: written when they differ, and again when they were removed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import CardMetrics, CardSample, CardSamples, SkippedCard
from deviceplugin.exporter.load import LoadAverage
from deviceplugin.exporter.load_annotator import LoadAnnotator
from deviceplugin.exporter.usage import UsageSnapshot, build_usage_snapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import Inventory
from fracgpu import names
from fracgpu.cards.annotations import read_foreign, read_heat, read_load_time, write_foreign
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import NODE, a_card, an_inventory
from tests.deviceplugin.node.test_node_status import FakeNode
from tests.fakes.clock import VirtualClock

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


class Rig:
    """One card, its node, and the annotator between them."""

    def __init__(self, *, known: Mapping[str, str] | None = None) -> None:
        self.clock, self.node = VirtualClock(), FakeNode()
        assert self.node.state is not None
        self.node.state = replace(self.node.state, annotations=known or {})
        self.readings = {A: CardSample(figures=CardMetrics(gpu_percent=50, used_mib=2000))}
        self.unread = False  # a second card is there and cannot be read
        self.left_out = False  # a second card does not even say which it is
        load = LoadAverage(average_s=300, gap_s=60, stale_s=15, headroom_mib=0)
        self.report = LoadAnnotator(
            node=NODE,
            load=load,
            latest=self.snapshot,
            current=lambda: self.node.state,
            writer=self.node,
            clock=self.clock,
            period_s=5,
            metrics=DevicePluginMetrics(CollectorRegistry()),
        )

    def snapshot(self) -> UsageSnapshot:
        here = [a_card("GPU-a")]
        if self.unread or B in self.readings:
            here.append(a_card("GPU-b"))
        listed = replace(
            an_inventory(*here).card_list,
            left_out=(SkippedCard(uuid="card 1", reason="hangs"),) if self.left_out else (),
        )
        return build_usage_snapshot(
            taken_at_s=0,
            inventory=Inventory(card_list=listed),
            samples=CardSamples(samples=self.readings),
            owners={},
            pods=[],
        )

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.report.sync()
            await self.clock.advance(5)

    @property
    def notes(self) -> dict[str, str]:
        assert self.node.state is not None
        return dict(self.node.state.annotations)


async def test_load_is_written_as_it_is_read_and_not_again_while_it_stays() -> None:
    rig = Rig()
    await rig.rounds(12)
    assert rig.node.writes == []
    await rig.rounds(50)

    assert len(rig.node.writes) == 1
    assert read_heat(rig.notes[names.NODE_HEAT]) == {A: 0.5}
    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_what_stays_is_stood_by_every_five_minutes() -> None:
    rig = Rig()
    times = []
    for _ in range(40):
        await rig.rounds(6)
        if text := rig.notes.get(names.NODE_LOAD_TIME):
            times.append(read_load_time(text))

    assert len(rig.node.writes) == len(set(times)) == 4
    assert sorted({after - before for before, after in pairwise(times) if after != before}) == [
        timedelta(minutes=5)
    ]
    assert rig.clock.now() - times[-1] < timedelta(minutes=5)
    assert read_heat(rig.notes[names.NODE_HEAT]) == {A: 0.5}


@pytest.mark.parametrize("left_out", [False, True])
async def test_after_a_restart_a_card_that_cannot_be_read_keeps_its_foreign_memory(
    *, left_out: bool
) -> None:
    rig = Rig(known={names.NODE_FOREIGN: write_foreign({B: Mib(4096)})})
    rig.unread = not left_out
    rig.left_out = left_out
    await rig.rounds(30)
    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048, B: 4096}

    rig.unread = rig.left_out = False
    rig.readings[B] = CardSample(figures=CardMetrics(gpu_percent=0, used_mib=0))
    await rig.rounds(15)
    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_foreign_memory_of_a_card_that_is_gone_is_not_kept() -> None:
    rig = Rig(known={names.NODE_FOREIGN: write_foreign({B: Mib(4096)})})
    await rig.rounds(15)

    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_what_an_earlier_agent_said_unreadably_is_said_anew() -> None:
    rig = Rig(known={names.NODE_FOREIGN: "spoilt"})
    await rig.rounds(15)

    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_what_somebody_takes_away_or_changes_is_put_back() -> None:
    rig = Rig()
    await rig.rounds(13)
    before = rig.notes
    assert rig.node.state is not None
    rig.node.state = replace(rig.node.state, annotations={names.NODE_HEAT: "{}"})

    await rig.rounds(1)

    assert rig.notes == before
    assert len(rig.node.writes) == 2


async def test_a_write_that_failed_is_tried_again_at_the_next_round() -> None:
    rig = Rig()
    rig.node.down = True
    await rig.rounds(15)
    assert rig.notes == {}
    rig.node.down = False

    await rig.rounds(1)

    assert names.NODE_HEAT in rig.notes


async def test_a_node_that_another_plugin_counts_says_nothing_of_its_load() -> None:
    rig = Rig()
    await rig.rounds(13)
    assert rig.node.state is not None
    rig.node.state = replace(rig.node.state, others={"nvidia.com/gpu": 1})

    await rig.rounds(1)
    said = {key: rig.notes[key] for key in (names.NODE_HEAT, names.NODE_FOREIGN)}
    assert said == {names.NODE_HEAT: "{}", names.NODE_FOREIGN: "{}"}

    fresh = Rig()
    assert fresh.node.state is not None
    fresh.node.state = replace(fresh.node.state, others={"nvidia.com/gpu": 1})
    await fresh.rounds(20)
    assert fresh.node.writes == []


async def test_nothing_is_written_on_a_node_that_shares_its_cards_no_more() -> None:
    rig = Rig()
    assert rig.node.state is not None
    rig.node.state = replace(rig.node.state, labels={})

    await rig.rounds(30)

    assert rig.node.writes == []
