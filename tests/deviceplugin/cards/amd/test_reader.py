"""AMD's cards on a tree of files: whole, in part, broken, partitioned, gone, and with processes."""

import os
import threading
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards.amd import sysfs
from deviceplugin.cards.amd.reader import AmdReader
from deviceplugin.cards.interface import CardProcess, CardsUnavailableError, DeviceNode
from fracgpu.cards.card import CardUuid, Health
from fracgpu.cards.card_class import Vendor
from fracgpu.units import Mib
from tests.fakes.amdgpu_tree import MIB, AmdgpuTree, open_card
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until

FIRST, SECOND = CardUuid("AMD-a1b2c3d4e5f60000"), CardUuid("AMD-a1b2c3d4e5f60001")
S = 1_000_000_000


@pytest.fixture
def tree(tmp_path: Path) -> AmdgpuTree:
    return AmdgpuTree(tmp_path)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def a_reader(tree: AmdgpuTree, clock: VirtualClock, *, timeout_s: float = 5.0) -> AmdReader:
    return AmdReader(
        timeout_s=timeout_s,
        dev_root=tree.dev,
        sys_root=tree.sys,
        proc_root=tree.proc,
        clock=clock,
    )


async def test_a_card_is_what_the_drivers_files_say(tree: AmdgpuTree, clock: VirtualClock) -> None:
    tree.card(0)

    listed = await a_reader(tree, clock).list_cards()

    (hardware,) = listed.cards
    card = hardware.card
    assert (card.uuid, card.model, card.index) == (FIRST, "AMD Instinct MI300X OAM", 0)
    # No process is on it, so what is in use is the driver's.
    assert (card.total_mib, card.reserved_mib, card.numa_node) == (196_592, 283, 0)
    assert card.health is Health.HEALTHY
    assert (hardware.vendor, hardware.pci_bus_id) == (Vendor.AMD, "0000:0c:00.0")
    assert hardware.device_nodes == (DeviceNode(path="/dev/dri/renderD128"),)
    assert hardware.common_nodes == (DeviceNode(path="/dev/kfd"),)
    assert (hardware.family, hardware.compute_units) == ("gfx942", 304)
    assert (listed.family, listed.left_out) == ("gfx942", ())


async def test_a_card_measures_what_its_files_say(tree: AmdgpuTree, clock: VirtualClock) -> None:
    folder = tree.card(0, used_mib=283)
    reader = a_reader(tree, clock)
    await reader.list_cards()
    tree.write(folder, "mem_info_vram_used", str(1283 * MIB))
    tree.process(7, open_card(client=1, mib=1000))

    figures = (await reader.read()).samples[FIRST].figures

    assert (figures.total_mib, figures.used_mib, figures.reserved_mib) == (196_592, 1000, 283)
    assert figures.free_mib == 196_592 - 1283
    assert (figures.gpu_percent, figures.memory_copy_percent) == (37, 12)
    assert (figures.temperature_c, figures.memory_temperature_c) == (41, 46)
    assert (figures.power_w, figures.sm_clock_mhz, figures.memory_clock_mhz) == (141.5, 2100, 1300)
    assert (figures.ecc_uncorrected, figures.pcie_replays, figures.xid) == (0, 0, None)


async def test_a_card_without_a_name_or_a_sensor_at_its_edge_has_the_next_best(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    sensors = "hwmon/hwmon4"
    without = {
        "product_name": None,
        f"{sensors}/temp1_label": None,
        f"{sensors}/temp1_input": None,
        f"{sensors}/power1_average": None,
        f"{sensors}/power1_input": "90000000",
        "ras/umc_err_count": "Query currently inaccessible",
    }
    tree.card(0, files=without)
    tree.card(1, files={"product_name": "", "device": "0x0bad"})
    tree.card(2, files={"product_name": "Instinct MI250X"})
    reader = a_reader(tree, clock)

    listed = await reader.list_cards()
    figures = (await reader.read()).samples[FIRST].figures

    assert [hardware.card.model for hardware in listed.cards] == [
        "AMD Instinct MI300X",
        "AMD card 0x0bad",
        "AMD Instinct MI250X",
    ]
    assert (figures.temperature_c, figures.power_w, figures.ecc_uncorrected) == (52, 90, None)


_OPTIONAL = (
    "product_name",
    "numa_node",
    "gpu_busy_percent",
    "mem_busy_percent",
    "pcie_replay_count",
    "current_compute_partition",
    "current_memory_partition",
    "ras/umc_err_count",
    *(f"hwmon/hwmon4/{name}{number}_input" for name in ("temp", "freq") for number in (1, 2)),
    "hwmon/hwmon4/temp2_label",
    "hwmon/hwmon4/power1_average",
)
_NEEDED = ("unique_id", "mem_info_vram_total", "mem_info_vram_used")


@given(
    absent=st.sets(st.sampled_from((*_OPTIONAL, *_NEEDED))),
    broken=st.sets(st.sampled_from((*_OPTIONAL, *_NEEDED))),
    garbled=st.sets(st.sampled_from(_OPTIONAL[2:])),
    garbage=st.text(alphabet=st.characters(codec="utf-8"), max_size=20),
)
@settings(max_examples=15, deadline=None)
async def test_whatever_a_tree_lacks_a_card_is_shared_whole_or_left_out_by_name(
    tmp_path_factory: pytest.TempPathFactory,
    absent: set[str],
    broken: set[str],
    garbled: set[str],
    garbage: str,
) -> None:
    tree, clock = AmdgpuTree(tmp_path_factory.mktemp("tree")), VirtualClock()
    partitions = {"current_compute_partition", "current_memory_partition"}
    texts = dict.fromkeys(garbled - partitions, garbage)
    folder = tree.card(0, files={**texts, **dict.fromkeys(absent)})
    for name in broken - absent:
        tree.break_file(folder / name)
    tree.card(1)
    reader = a_reader(tree, clock)

    listed = await reader.list_cards()
    samples = await reader.read()

    shared = [hardware.card for hardware in listed.cards]
    if (absent | broken) & {*_NEEDED} or (broken - absent) & partitions:
        assert [card.uuid for card in shared] == [SECOND]
        (left_out,) = listed.left_out
        assert "0000:0c:00.0" in left_out.uuid or left_out.uuid == FIRST
        assert left_out.reason
    else:
        assert [card.uuid for card in shared] == [FIRST, SECOND]
        assert shared[0].total_mib == 196_592
        figures = samples.samples[FIRST].figures
        assert figures.used_mib is not None
        if "gpu_busy_percent" in absent | broken:
            assert figures.gpu_percent is None
    assert samples.samples[SECOND].figures.gpu_percent == 37


class Trouble(Enum):
    """What may happen to a card between two listings."""

    NONE = "none"
    EIO = "a file answers with an error"
    ALL_ONES = "it has more memory than there is"
    PARTITION = "it is partitioned"
    TWIN = "it has the unique_id of card 0"
    GONE = "it is off the bus"


class TroubledTree:
    """Three cards, to which things happen."""

    def __init__(self, root: Path) -> None:
        self.tree = AmdgpuTree(root)
        self.folders = [self.tree.card(index) for index in range(3)]
        self.ids = [(folder / "unique_id").read_text().strip() for folder in self.folders]
        self.away: set[int] = set()

    def happen(self, index: int, trouble: Trouble) -> None:
        """Undo what happened to a card before, and let *trouble* happen."""
        tree, folder = self.tree, self.folders[index]
        total = folder / "mem_info_vram_total"
        if index in self.away:
            tree.put_back(folder, index)
            self.away.remove(index)
        if total.is_dir():
            total.rmdir()
        total_bytes = 2**64 - 1 if trouble is Trouble.ALL_ONES else 196_592 * MIB
        tree.write(folder, "mem_info_vram_total", str(total_bytes))
        mode = "CPX" if trouble is Trouble.PARTITION else "SPX"
        tree.write(folder, "current_compute_partition", mode)
        tree.write(folder, "unique_id", self.ids[0 if trouble is Trouble.TWIN else index])
        if trouble is Trouble.EIO:
            tree.break_file(total)
        elif trouble is Trouble.GONE:
            tree.remove(folder)
            self.away.add(index)


@given(st.lists(st.tuples(*3 * (st.sampled_from(Trouble),)), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
async def test_through_any_troubles_a_card_is_never_shared_as_another_or_as_healthy_unread(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[Trouble, ...]]
) -> None:
    troubled = TroubledTree(tmp_path_factory.mktemp("tree"))
    reader = a_reader(troubled.tree, VirtualClock())
    first = {each.card.uuid: each.pci_bus_id for each in (await reader.list_cards()).cards}
    for troubles in rounds:
        for index, trouble in enumerate(troubles):
            troubled.happen(index, trouble)
        if len(troubled.away) == 3:
            with pytest.raises(CardsUnavailableError):
                await reader.list_cards()
            continue

        listed = await reader.list_cards()
        samples = await reader.read()

        uuids = [each.card.uuid for each in listed.cards]
        assert len(set(uuids)) == len(uuids)
        assert len(uuids) + len(listed.left_out) == 3 - len(troubled.away)
        for each in listed.cards:
            # A card is the one at its place, or has come to the place of one that is gone.
            assert each.pci_bus_id == first[each.card.uuid] or 0 in troubled.away
            assert each.card.total_mib == 196_592
            place = list(first.values()).index(each.pci_bus_id)
            healthy = troubles[place] not in (Trouble.EIO, Trouble.ALL_ONES)
            assert (each.card.health is Health.HEALTHY) is healthy
            assert (each.card.uuid in samples.samples) is healthy


@pytest.mark.parametrize(
    ("file", "mode"), [("current_compute_partition", "CPX"), ("current_memory_partition", "NPS4")]
)
async def test_a_partitioned_card_is_left_out_by_name(
    tree: AmdgpuTree, clock: VirtualClock, file: str, mode: str
) -> None:
    tree.card(0, files={file: mode})
    tree.card(1)

    listed = await a_reader(tree, clock).list_cards()

    assert [hardware.card.uuid for hardware in listed.cards] == [SECOND]
    (left_out,) = listed.left_out
    assert left_out.uuid == FIRST
    assert f"it is partitioned ({file} is {mode}" in left_out.reason


async def test_two_cards_of_one_unique_id_are_both_left_out(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0, unique_id="00000000000000aa")
    tree.card(1, unique_id="00000000000000aa")
    tree.card(2)

    listed = await a_reader(tree, clock).list_cards()

    assert [hardware.card.uuid for hardware in listed.cards] == ["AMD-a1b2c3d4e5f60002"]
    assert [skipped.uuid for skipped in listed.left_out] == [
        "AMD-00000000000000aa at 0000:0c:00.0",
        "AMD-00000000000000aa at 0000:1c:00.0",
    ]
    assert all("cannot be told apart" in skipped.reason for skipped in listed.left_out)


@pytest.mark.parametrize("unique_id", ["", "0", "0000000000000000", "not hex"])
async def test_integrated_graphics_which_have_no_unique_id_are_left_out(
    tree: AmdgpuTree, clock: VirtualClock, unique_id: str
) -> None:
    tree.card(0, files={"unique_id": unique_id or None})

    listed = await a_reader(tree, clock).list_cards()

    assert listed.cards == ()
    (left_out,) = listed.left_out
    assert left_out.uuid == "AMD card at 0000:0c:00.0"
    assert "no unique_id" in left_out.reason


async def test_a_card_whose_files_block_holds_up_no_other(
    tree: AmdgpuTree, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.card(0)
    tree.card(1)
    reader = a_reader(tree, clock, timeout_s=0.2)
    await reader.list_cards()
    inspect, release = sysfs.inspect, threading.Event()

    def blocking(device: sysfs.Device) -> sysfs.Found:
        if device.address == "0000:0c:00.0":
            release.wait(30)
        return inspect(device)

    monkeypatch.setattr(sysfs, "inspect", blocking)
    first, second = (await reader.list_cards()).cards
    release.set()

    assert (first.card.health, second.card.health) == (Health.UNHEALTHY, Health.HEALTHY)
    assert "did not return in 0.2 s" in first.card.health_reason

    async def recovered() -> bool:
        return all(each.card.health is Health.HEALTHY for each in (await reader.list_cards()).cards)

    await until(recovered, what="the card answers again")


async def test_cards_are_numbered_as_rocm_numbers_them(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0, kfd_node=5)
    tree.card(1, kfd_node=3)
    tree.card(2)
    (tree.sys / "class/kfd/kfd/topology/nodes/4/properties").unlink()

    listed = await a_reader(tree, clock).list_cards()

    order = [(each.card.index, each.pci_bus_id, each.compute_units) for each in listed.cards]
    assert order == [(0, "0000:1c:00.0", 304), (1, "0000:0c:00.0", 304), (2, "0000:2c:00.0", 0)]


async def test_cards_linked_to_each_other_are_nearest_and_then_those_of_one_socket(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    for index, numa in enumerate(("0", "1", "1", None)):
        tree.card(index, files={"numa_node": numa})
    tree.link(2, 3)
    tree.link(3, 2, weight=30)
    tree.link(4, 2, kind=2, weight=20)  # PCIe
    tree.link(4, 0, weight=15)  # a processor

    listed = await a_reader(tree, clock).list_cards()

    ids = [each.card.uuid for each in listed.cards]
    found = [[each.card.links.get(other) for other in ids] for each in listed.cards]
    assert found == [
        [None, 1, 50, None],
        [2, None, 40, None],
        [50, 40, None, None],
        [None, None, None, None],
    ]


async def test_without_the_driver_no_card_can_be_listed(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    with pytest.raises(CardsUnavailableError, match="no card uses this driver"):
        await a_reader(tree, clock).list_cards()


async def processes(reader: AmdReader) -> tuple[CardProcess, ...]:
    """Return the processes on the first card."""
    sample = (await reader.read()).samples[FIRST]
    assert sample.processes_known
    return sample.processes


async def test_a_processes_memory_and_time_are_those_of_its_open_files(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    tree.card(1)
    reader = a_reader(tree, clock)
    await reader.list_cards()
    tree.process(7, open_card(client=1, mib=500, gfx_ns=10 * S), open_card(1, client=2, mib=900))
    tree.process(8, open_card(client=3, mib=None))
    tree.process(9)
    first = await processes(reader)
    await clock.advance(10)
    tree.process(
        7,
        # A copy of an open file counts once.
        open_card(client=1, mib=500, gfx_ns=12 * S, compute_ns=1 * S),
        open_card(client=1, mib=500, gfx_ns=12 * S, compute_ns=1 * S),
        open_card(client=4, mib=100),
        open_card(1, client=2, mib=900),
    )

    samples = (await reader.read()).samples

    # How busy a process is, two readings tell.
    assert [process.sm_percent for process in first] == [None, None]
    assert samples[FIRST].processes == (
        CardProcess(pid=7, used_mib=Mib(600), sm_percent=30.0),
        CardProcess(pid=8, used_mib=None, sm_percent=0.0),
    )
    assert samples[SECOND].processes == (CardProcess(pid=7, used_mib=Mib(900), sm_percent=0.0),)


async def test_an_open_file_that_two_processes_share_counts_for_one(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    tree.process(7, open_card(client=1, mib=500))
    tree.process(8, open_card(client=1, mib=500))
    reader = a_reader(tree, clock)
    await reader.list_cards()

    assert [process.used_mib for process in await processes(reader)] == [500, 0]


async def test_the_time_of_a_program_with_rocms_queues_is_unknown_and_never_idle(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    tree.process(7, open_card(client=1, mib=500, gfx_ns=0), kfd=True)
    tree.process(8, open_card(client=2, mib=100, gfx_ns=0))
    reader = a_reader(tree, clock)
    await reader.list_cards()
    await reader.read()
    await clock.advance(5)

    assert await processes(reader) == (
        CardProcess(pid=7, used_mib=Mib(500), sm_percent=None),
        CardProcess(pid=8, used_mib=Mib(100), sm_percent=0.0),
    )


async def test_a_time_that_falls_is_the_larger_one_until_it_has_caught_up(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    reader = a_reader(tree, clock)
    await reader.list_cards()
    shares = []
    for busy_s in (10, 8, 11):
        tree.process(7, open_card(client=1, gfx_ns=busy_s * S))
        shares.append((await processes(reader))[0].sm_percent)
        await clock.advance(10)

    assert shares == [None, 0.0, 10.0]


async def test_with_a_process_that_cannot_be_read_the_processes_are_not_known(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    folder = tree.process(7, open_card(client=1, mib=500, gfx_ns=10 * S))
    reader = a_reader(tree, clock)
    await reader.list_cards()
    await reader.read()
    tree.break_file(folder / "fdinfo" / "1")

    sample = (await reader.read()).samples[FIRST]

    assert not sample.processes_known
    (folder / "fdinfo" / "1").rmdir()
    tree.process(7, open_card(client=1, mib=500, gfx_ns=11 * S))
    await clock.advance(10)
    assert [process.sm_percent for process in await processes(reader)] == [10.0]


async def test_a_scan_of_processes_that_takes_too_long_ends_and_is_not_whole(
    tree: AmdgpuTree,
) -> None:
    class Slow(VirtualClock):
        asked = 0

        def monotonic(self) -> float:
            self.asked += 1
            return 0.5 * self.asked

    clock = Slow()
    tree.card(0)
    for pid in range(2, 40):
        tree.process(pid, open_card(client=pid))
    reader = a_reader(tree, clock)
    await reader.list_cards()

    sample = (await reader.read()).samples[FIRST]

    assert not sample.processes_known
    assert len(sample.processes) < 38


async def test_what_the_driver_keeps_is_learnt_while_a_program_runs(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0, used_mib=1283)
    tree.process(7, open_card(client=1, mib=1000))

    (hardware,) = (await a_reader(tree, clock).list_cards()).cards

    assert hardware.card.reserved_mib == 283


async def test_the_newer_kernels_word_for_memory_is_read(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    path, text = open_card(client=1, mib=None)
    tree.process(7, (path, f"{text}drm-total-vram:\t9 MiB\ndrm-resident-vram:\t7 MiB\n"))
    tree.process(8, ("/host/dev/dri/card1", text), (path, "drm-driver:\ti915\n"))
    reader = a_reader(tree, clock)
    await reader.list_cards()

    assert [process.used_mib for process in await processes(reader)] == [7, 0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every process")
async def test_the_processes_of_others_are_not_read_without_the_right(
    tree: AmdgpuTree, clock: VirtualClock
) -> None:
    tree.card(0)
    folder = tree.process(7, open_card(client=1, mib=500))
    (folder / "fd").chmod(0)
    reader = a_reader(tree, clock)
    await reader.list_cards()

    assert not (await reader.read()).samples[FIRST].processes_known
