"""The node's annotations of load: written when they differ, put back when somebody takes them."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from deviceplugin.cards import Figures, Reading, ReadingRound
from deviceplugin.load import SlowLoad
from deviceplugin.load_report import LoadReport
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.usage import UsagePicture, picture_usage
from fracgpu import names
from fracgpu.card import CardUuid
from fracgpu.wire import read_foreign, read_heat
from tests.deviceplugin.builders import NODE, a_card, a_stock
from tests.deviceplugin.test_report import FakeNode
from tests.fakes.clock import VirtualClock

A = CardUuid("GPU-a")


class World:
    """One card, its node, and the report between them."""

    def __init__(self) -> None:
        self.clock, self.node = VirtualClock(), FakeNode()
        self.reading = Reading(figures=Figures(gpu_percent=50, used_mib=2000))
        load = SlowLoad(average_s=300, gap_s=60, stale_s=15, headroom_mib=0)
        self.report = LoadReport(
            node=NODE,
            load=load,
            picture=self.picture,
            current=lambda: self.node.state,
            writer=self.node,
            clock=self.clock,
            period_s=5,
            metrics=DevicePluginMetrics(CollectorRegistry()),
        )

    def picture(self) -> UsagePicture:
        return picture_usage(
            taken_at_s=0,
            stock=a_stock(a_card("GPU-a")),
            readings=ReadingRound(readings={A: self.reading}),
            owners={},
            pods=[],
        )

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.report.round()
            await self.clock.advance(5)

    @property
    def notes(self) -> dict[str, str]:
        assert self.node.state is not None
        return dict(self.node.state.annotations)


async def test_load_is_written_as_it_is_read_and_not_again_while_it_stays() -> None:
    world = World()
    await world.rounds(12)
    assert world.node.writes == []
    await world.rounds(100)

    assert len(world.node.writes) == 1
    assert read_heat(world.notes[names.NODE_HEAT]) == {A: 0.5}
    assert read_foreign(world.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_what_somebody_takes_away_or_changes_is_put_back() -> None:
    world = World()
    await world.rounds(13)
    before = world.notes
    assert world.node.state is not None
    world.node.state = replace(world.node.state, annotations={names.NODE_HEAT: "{}"})

    await world.rounds(1)

    assert world.notes == before
    assert len(world.node.writes) == 2


async def test_a_write_that_failed_is_tried_again_at_the_next_round() -> None:
    world = World()
    world.node.down = True
    await world.rounds(15)
    assert world.notes == {}
    world.node.down = False

    await world.rounds(1)

    assert names.NODE_HEAT in world.notes


async def test_a_node_that_another_plugin_counts_says_nothing_of_its_load() -> None:
    world = World()
    await world.rounds(13)
    assert world.node.state is not None
    world.node.state = replace(world.node.state, others={"nvidia.com/gpu": 1})

    await world.rounds(1)
    assert world.notes == {names.NODE_HEAT: "{}", names.NODE_FOREIGN: "{}"}

    fresh = World()
    assert fresh.node.state is not None
    fresh.node.state = replace(fresh.node.state, others={"nvidia.com/gpu": 1})
    await fresh.rounds(20)
    assert fresh.node.writes == []


async def test_nothing_is_written_on_a_node_that_shares_its_cards_no_more() -> None:
    world = World()
    assert world.node.state is not None
    world.node.state = replace(world.node.state, labels={})

    await world.rounds(30)

    assert world.node.writes == []
