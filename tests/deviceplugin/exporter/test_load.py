"""Heat changes slowly and is written seldom; a card with less free memory is written sooner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import (
    CardMetrics,
    CardProcess,
    CardSample,
    CardSamples,
    SkippedCard,
)
from deviceplugin.exporter.load import LoadAverage, NodeLoad, foreign_mib
from deviceplugin.exporter.load_annotator import LoadAnnotator
from deviceplugin.exporter.usage import UsageSnapshot, build_usage_snapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import Inventory
from fracgpu import names
from fracgpu.cards.annotations import read_foreign, read_heat, read_load_time, write_foreign
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import NODE, a_card, a_pod, a_usage_snapshot, an_inventory
from tests.deviceplugin.node.test_capacity import FakeNode
from tests.fakes.clock import VirtualClock

A = CardUuid("GPU-a")
PERIOD_S = 5.0
OURS = 1  # the process of the pod that is on the card, with 1,000 MiB assigned


def a_snapshot(
    *,
    percent: float | None = 50.0,
    used_mib: float | None = 0.0,
    processes: Sequence[tuple[int, int | None]] = (),
    known: bool = True,
    read: bool = True,
) -> UsageSnapshot:
    """One card with one pod; *processes* are (pid, MiB), all but ``OURS`` foreign."""
    reading = CardSample(
        figures=CardMetrics(gpu_percent=percent, used_mib=used_mib),
        processes=tuple(
            CardProcess(pid=pid, used_mib=None if mib is None else Mib(mib))
            for pid, mib in processes
        ),
        processes_known=known,
    )
    return a_usage_snapshot(reading if read else None, a_pod("one"), owners={OURS: "uid-one"})


def a_load(**changes: float) -> LoadAverage:
    options = {"average_s": 300.0, "gap_s": 60.0, "stale_s": 15.0, **changes}
    return LoadAverage(headroom_mib=int(options.pop("headroom_mib", 0)), **options)


class Watching:
    """Feeds snapshots to a load average, and records each load that it wants written."""

    def __init__(self, **changes: float) -> None:
        self.load = a_load(**changes)
        self.now_s = 1000.0
        self.written: list[tuple[float, NodeLoad]] = []

    def show(self, snapshot: UsageSnapshot, *, for_s: float) -> None:
        for _ in range(int(for_s / PERIOD_S)):
            self.load.observe(snapshot, now_s=self.now_s)
            said = self.load.load_to_write(now_s=self.now_s)
            if said is not None and (not self.written or said is not self.written[-1][1]):
                self.written.append((self.now_s - 1000.0, said))
            self.now_s += PERIOD_S

    @property
    def last(self) -> NodeLoad:
        return self.written[-1][1]


@pytest.mark.parametrize(
    ("snapshot", "headroom_mib", "mib"),
    [
        pytest.param({"used_mib": 300, "processes": [(OURS, 300)]}, 0, 0, id="ours-alone"),
        pytest.param({"used_mib": 1500, "processes": [(OURS, 1500)]}, 0, 0, id="ours-beyond-limit"),
        pytest.param({"used_mib": 340, "processes": [(OURS, 300)]}, 0, 0, id="the-drivers-own"),
        pytest.param({"used_mib": 800, "processes": [(OURS, 300), (2, 500)]}, 0, 512, id="foreign"),
        pytest.param({"used_mib": 800, "processes": [(OURS, 300)]}, 0, 512, id="left-behind"),
        pytest.param(
            {"used_mib": None, "processes": [(OURS, 300), (2, 100)]}, 0, None, id="no-figure"
        ),
        pytest.param(
            {"used_mib": 800, "processes": [(OURS, None), (2, 500)]}, 0, 512, id="ours-unknown"
        ),
        pytest.param(
            {"used_mib": 1800, "processes": [(OURS, None)]}, 0, 832, id="beyond-all-assigned"
        ),
        pytest.param({"used_mib": 1800, "known": False}, 0, 832, id="processes-unknown"),
        pytest.param({"used_mib": 900, "known": False}, 0, 0, id="within-what-is-assigned"),
        pytest.param({"used_mib": 800, "processes": [(2, 800)]}, 1000, 0, id="in-the-headroom"),
        pytest.param({"used_mib": 800, "processes": [(2, 800)]}, 300, 512, id="past-the-headroom"),
        pytest.param({"read": False}, 0, None, id="not-read"),
    ],
)
def test_foreign_is_what_nobody_we_know_uses(
    snapshot: dict[str, object], headroom_mib: int, mib: int | None
) -> None:
    (use,) = a_snapshot(**snapshot).cards  # type: ignore[arg-type]

    assert foreign_mib(use, headroom_mib=headroom_mib) == mib


def test_heat_is_a_slow_average_and_told_in_steps_of_a_tenth() -> None:
    watching = Watching()
    watching.show(a_snapshot(percent=20), for_s=600)
    watching.show(a_snapshot(percent=100), for_s=1800)

    times = [at_s for at_s, _ in watching.written]
    heats = [load.heat[A] for _, load in watching.written]
    assert (times[0], heats[0]) == (60, 0.2)
    assert heats == sorted(heats)
    assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert len(heats) <= 9
    assert heats[-1] > 0.9
    # After as long as the average is over, about two thirds of the way.
    (two_thirds,) = [load.heat[A] for at_s, load in watching.written if 900 <= at_s < 960] or [0.7]
    assert 0.6 < two_thirds < 0.8


def test_a_steady_card_is_told_of_once() -> None:
    watching = Watching()
    for _ in range(100):
        watching.show(a_snapshot(percent=40), for_s=PERIOD_S)
        watching.show(a_snapshot(percent=60), for_s=PERIOD_S)

    assert len(watching.written) == 1


def test_a_card_that_gives_no_figure_has_no_heat_soon_and_is_never_told_to_be_cool() -> None:
    watching = Watching()
    watching.show(a_snapshot(percent=90), for_s=120)
    for unknown in (a_snapshot(percent=None), a_snapshot(read=False)):
        watching.show(unknown, for_s=60)
        assert watching.last.heat == {}
        watching.show(a_snapshot(percent=90), for_s=120)
        assert watching.last.heat == {A: 0.9}

    gone_at_s = next(at_s for at_s, load in watching.written if not load.heat)
    assert gone_at_s - 115 <= 30


def test_foreign_memory_is_told_within_seconds_and_forgotten_after_the_gap() -> None:
    watching = Watching()
    watching.show(a_snapshot(), for_s=120)
    watching.show(a_snapshot(used_mib=5000, processes=[(2, 5000)]), for_s=60)
    watching.show(a_snapshot(), for_s=300)

    (_, first), (grown_at_s, grown), (shrunk_at_s, shrunk) = watching.written
    assert (first.foreign, grown.foreign, shrunk.foreign) == ({}, {A: 5056}, {})
    assert grown_at_s - 120 <= 15
    assert shrunk_at_s - grown_at_s >= 60


def test_a_process_that_is_foreign_for_a_moment_is_not_told() -> None:
    watching = Watching()
    watching.show(a_snapshot(), for_s=120)
    for _ in range(20):
        watching.show(a_snapshot(used_mib=5000, processes=[(2, 5000)]), for_s=2 * PERIOD_S)
        watching.show(a_snapshot(), for_s=PERIOD_S)

    assert [load.foreign for _, load in watching.written] == [{}]


def test_foreign_memory_of_a_card_that_cannot_be_read_is_not_freed() -> None:
    watching = Watching()
    watching.show(a_snapshot(used_mib=5000, processes=[(2, 5000)]), for_s=120)
    watching.show(a_snapshot(read=False), for_s=600)

    assert watching.last.foreign == {A: 5056}


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(0, 100),
            st.integers(0, 8000),
            st.sampled_from([1.0, 5.0, 30.0, 400.0]),
        ),
        max_size=60,
    )
)
def test_whatever_is_measured_heat_is_a_ratio_and_the_node_changes_at_most_each_ten_seconds(
    shown: list[tuple[float | None, int, float]],
) -> None:
    load, now_s = a_load(), 0.0
    written: list[tuple[float, NodeLoad]] = []
    for percent, foreign, pause_s in shown:
        load.observe(
            a_snapshot(percent=percent, used_mib=foreign, processes=[(2, foreign)]), now_s=now_s
        )
        said = load.load_to_write(now_s=now_s)
        if said is not None and (not written or said is not written[-1][1]):
            written.append((now_s, said))
        now_s += pause_s

    for (earlier_s, _), (later_s, _) in pairwise(written):
        assert later_s - earlier_s >= 10
    for _, said in written:
        assert all(0 <= ratio <= 1 for ratio in said.heat.values())
        assert all(0 < mib <= 8064 and mib % 64 == 0 for mib in said.foreign.values())


B = CardUuid("GPU-b")


class Rig:
    """One card, its node, and the annotator between them."""

    def __init__(self, *, known: Mapping[str, str] | None = None) -> None:
        self.clock, self.node = VirtualClock(), FakeNode()
        self.node.state = replace(self.node.state, annotations=known or {})
        self.readings = {A: CardSample(figures=CardMetrics(gpu_percent=50, used_mib=2000))}
        self.unread = False  # a second card is there and cannot be read
        self.left_out = False  # a second card does not even say which it is
        load = LoadAverage(average_s=300, gap_s=60, stale_s=15, headroom_mib=0)
        self.report = LoadAnnotator(
            node=NODE,
            load=load,
            latest=self.snapshot,
            current=self.node.current,
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
        return dict(self.node.state.annotations)


def test_what_pods_use_is_written_again_once_it_has_changed_by_a_step() -> None:
    watching = Watching()

    watching.show(a_snapshot(processes=[(OURS, 300)]), for_s=120)
    watching.show(a_snapshot(processes=[(OURS, 555)]), for_s=120)
    watching.show(a_snapshot(processes=[(OURS, 556)]), for_s=120)
    watching.show(a_snapshot(processes=[(OURS, None)]), for_s=120)

    assert [load.used for _, load in watching.written] == [
        {A: {"uid-one": 300}},
        {A: {"uid-one": 556}},
        {},
    ]


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


@pytest.mark.parametrize("known", [write_foreign({B: Mib(4096)}), "spoilt"])
async def test_what_an_earlier_agent_said_unreadably_or_of_a_card_that_is_gone_is_not_kept(
    known: str,
) -> None:
    rig = Rig(known={names.NODE_FOREIGN: known})
    await rig.rounds(15)

    assert read_foreign(rig.notes[names.NODE_FOREIGN]) == {A: 2048}


async def test_what_somebody_takes_away_or_changes_is_put_back() -> None:
    rig = Rig()
    await rig.rounds(13)
    before = rig.notes
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
    rig.node.state = replace(rig.node.state, others={"nvidia.com/gpu": 1})

    await rig.rounds(1)
    said = {key: rig.notes[key] for key in (names.NODE_HEAT, names.NODE_FOREIGN)}
    assert said == {names.NODE_HEAT: "{}", names.NODE_FOREIGN: "{}"}

    fresh = Rig()
    fresh.node.state = replace(fresh.node.state, others={"nvidia.com/gpu": 1})
    await fresh.rounds(20)
    assert fresh.node.writes == []


async def test_nothing_is_written_on_a_node_that_shares_its_cards_no_more() -> None:
    rig = Rig()
    rig.node.state = replace(rig.node.state, labels={})

    await rig.rounds(30)

    assert rig.node.writes == []
