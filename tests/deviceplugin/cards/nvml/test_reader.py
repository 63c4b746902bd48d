"""The NVML reader: over a fake pynvml, and the real one without a driver or with a stand-in."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from deviceplugin.cards.interface import CardsUnavailableError
from deviceplugin.cards.nvml.reader import NvmlReader
from fracgpu.cards.card import CardUuid, Health
from tests.fakes.nvml import MIB, NOT_SUPPORTED, FakeNvml, FakeNvmlCard
from tests.support.nvml import Standin, a_card
from tests.support.waiting import until

A = CardUuid("GPU-a")
B = CardUuid("GPU-b")


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(FakeNvmlCard(uuid="GPU-a"), FakeNvmlCard(uuid="GPU-b"))


@pytest.fixture
async def reader(nvml: FakeNvml) -> AsyncIterator[NvmlReader]:
    reader = NvmlReader(timeout_s=2.0, library=nvml)
    yield reader
    await reader.close()


async def test_without_a_driver_the_true_library_says_that_it_is_missing() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")

    with pytest.raises(CardsUnavailableError, match="NVML: "):
        await NvmlReader().list_cards()


async def test_a_card_is_known_by_its_uuid_with_memory_in_whole_mib(reader: NvmlReader) -> None:
    listed = await reader.list_cards()

    first, second = listed.cards
    assert listed.driver == "580.65.06"
    assert (first.card.uuid, first.card.index, first.card.model) == (A, 0, "NVIDIA A30")
    assert (first.card.total_mib, first.card.reserved_mib) == (24576, 500)
    assert first.pci_bus_id == "00000000:17:00.0"
    assert [node.path for node in second.device_nodes] == ["/dev/nvidia1"]


async def test_links_are_known_once_both_cards_are(reader: NvmlReader) -> None:
    await reader.list_cards()
    listed = await reader.list_cards()

    assert [dict(hardware.card.links) for hardware in listed.cards] == [{B: 30}, {A: 30}]


async def test_a_card_in_mig_mode_is_left_out_with_a_reason(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    nvml.cards[0].mig = 1

    listed = await reader.list_cards()

    assert [hardware.card.uuid for hardware in listed.cards] == [B]
    assert [(card.uuid, "MIG" in card.reason) for card in listed.left_out] == [(A, True)]


async def test_a_card_without_memory_of_its_own_is_left_out(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    nvml.cards[0].failing["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED

    listed = await reader.list_cards()

    assert [card.uuid for card in listed.left_out] == [A]


async def test_a_card_that_fell_off_the_bus_is_unhealthy_and_comes_back(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    await reader.list_cards()
    nvml.cards[0].failing["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
    lost = await reader.list_cards()
    nvml.cards[0].failing.clear()
    back = await reader.list_cards()

    health = [[hardware.card.health for hardware in listed.cards] for listed in (lost, back)]
    assert health[0] == [Health.UNHEALTHY, Health.HEALTHY]
    assert health[1] == [Health.HEALTHY, Health.HEALTHY]
    assert lost.cards[0].card.health_reason


async def test_a_failed_row_remapping_makes_a_card_unhealthy(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    nvml.cards[1].remap_failed = 1

    listed = await reader.list_cards()

    assert listed.cards[1].card.health is Health.UNHEALTHY


async def test_figures_come_in_the_units_they_are_exported_in(reader: NvmlReader) -> None:
    await reader.list_cards()

    figures = (await reader.read()).samples[A].figures

    assert (figures.gpu_percent, figures.memory_copy_percent) == (40, 10)
    assert (figures.used_mib, figures.reserved_mib, figures.free_mib) == (100, 500, 23976)
    assert (figures.power_w, figures.temperature_c, figures.memory_temperature_c) == (
        150.5,
        48,
        51,
    )
    assert (figures.energy_mj, figures.sm_clock_mhz, figures.pcie_replays) == (123_456, 1410, 3)
    assert (figures.remapped_rows_correctable, figures.remapped_rows_uncorrectable) == (1, 2)
    assert figures.xid is None


async def test_a_figure_the_card_does_not_have_is_asked_for_once(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    nvml.cards[0].failing["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    nvml.cards[1].failing["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    await reader.list_cards()

    first, second = await reader.read(), await reader.read()

    assert first.samples[A].figures.power_w is None
    assert second.samples[A].figures.gpu_percent == 40
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 2  # once for each card


async def test_without_memory_version_2_the_drivers_part_is_learnt_from_version_1(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    def old_driver(name: str) -> None:
        if name == "nvmlDeviceGetMemoryInfo" and nvml.calls.count(name) == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    nvml.cards = nvml.cards[:1]
    nvml.before_call = old_driver
    await reader.list_cards()

    figures = (await reader.read()).samples[A].figures

    assert (figures.used_mib, figures.reserved_mib) == (0, 600)  # nobody runs there


async def test_processes_have_memory_in_mib_and_their_newest_share(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    card = nvml.cards[0]
    card.processes = {7: 300 * MIB, 8: None, 9: 100 * MIB}
    card.samples = [(7, 1000, 10), (7, 2000, 35), (8, 2000, 101)]
    await reader.list_cards()

    seen = (await reader.read()).samples[A].processes

    assert [(process.pid, process.used_mib, process.sm_percent) for process in seen] == [
        (7, 300, 35.0),
        (8, None, 0.0),  # more than 100 % is garbage
        (9, 100, 0.0),
    ]


async def test_a_process_without_a_new_sample_is_idle(nvml: FakeNvml, reader: NvmlReader) -> None:
    nvml.cards[0].processes = {7: MIB}
    nvml.cards[0].samples = [(7, 1000, 10)]
    await reader.list_cards()

    shares = [(await reader.read()).samples[A].processes[0].sm_percent for _ in range(2)]

    assert shares == [10.0, 0.0]


async def test_a_driver_that_lists_no_processes_is_not_an_idle_card(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        nvml.failing[f"nvmlDeviceGet{kind}RunningProcesses_v3"] = NOT_SUPPORTED
    await reader.list_cards()

    assert not (await reader.read()).samples[A].processes_known


async def test_one_card_that_cannot_be_read_does_not_hide_the_others(
    nvml: FakeNvml, reader: NvmlReader
) -> None:
    await reader.list_cards()
    nvml.cards[0].failing["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST

    answer = await reader.read()

    assert set(answer.samples) == {B}
    assert set(answer.errors) == {A}


async def test_a_lost_driver_is_initialised_again(nvml: FakeNvml, reader: NvmlReader) -> None:
    await reader.list_cards()
    nvml.failing["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(CardsUnavailableError):
        await reader.list_cards()
    nvml.failing.clear()

    listed = await reader.list_cards()

    assert len(listed.cards) == 2
    assert nvml.calls.count("nvmlInit") == 2


async def test_loops_that_begin_together_open_the_library_once() -> None:
    nvml = FakeNvml(FakeNvmlCard(uuid="GPU-a"))
    reader = NvmlReader(timeout_s=2.0, library=nvml)

    async with asyncio.TaskGroup() as group:
        group.create_task(reader.read())
        group.create_task(reader.list_cards())
    await reader.close()

    # NVML counts: it releases the driver only once it was shut down as often as initialised.
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlShutdown") == 1


async def test_an_opening_that_returns_too_late_is_not_opened_once_more() -> None:
    release = threading.Event()
    nvml = FakeNvml(FakeNvmlCard(uuid="GPU-a"))

    def hang(name: str) -> None:
        if name == "nvmlInit":
            release.wait(10)

    nvml.before_call = hang
    reader = NvmlReader(timeout_s=0.1, library=nvml)
    with pytest.raises(CardsUnavailableError, match="NVML hangs"):
        await reader.list_cards()
    release.set()

    async def answers() -> bool:
        try:
            return bool((await reader.list_cards()).cards)
        except CardsUnavailableError:
            return False

    await until(answers, what="the reader works once the call has returned")
    await reader.close()
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlShutdown") == 1


async def test_a_call_that_hangs_is_given_up_and_the_next_one_says_so() -> None:
    release = threading.Event()
    nvml = FakeNvml(FakeNvmlCard(uuid="GPU-a"))

    def hang(name: str) -> None:
        if name == "nvmlDeviceGetCount":
            release.wait(10)

    nvml.before_call = hang
    reader = NvmlReader(timeout_s=0.1, library=nvml)
    try:
        with pytest.raises(CardsUnavailableError, match="nvmlDeviceGetCount did not return"):
            await reader.list_cards()
        with pytest.raises(CardsUnavailableError, match="nvmlDeviceGetCount has not returned yet"):
            await reader.list_cards()
    finally:
        release.set()

    async def answers() -> bool:
        try:
            return bool((await reader.list_cards()).cards)
        except CardsUnavailableError:
            return False

    await until(answers, what="the reader works again once the call has returned")


async def test_closing_lets_go_of_the_library(nvml: FakeNvml) -> None:
    reader = NvmlReader(timeout_s=2.0, library=nvml)
    await reader.list_cards()

    await reader.close()
    await reader.close()

    assert nvml.calls.count("nvmlShutdown") == 1


async def test_through_the_true_ctypes_calls_a_card_is_what_the_library_says(
    standin: Standin, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    device = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")

    listed = await standin.list_cards()

    first, second = listed["cards"]
    assert first == {
        "card": {
            "uuid": standin.uuid(0),
            "index": 0,
            "model": "NVIDIA A30",
            "total_mib": 24576,
            "reserved_mib": 500,
            "health": "healthy",
            "health_reason": "",
            "numa_node": 1,
            "slots": 32,
            "links": {},
        },
        "pci_bus_id": "00000000:17:00.0",
        "device_nodes": [{"path": "/dev/nvidia0", "host_path": ""}],
        "family": "ampere",
        "brand": "nvidia",
    }
    assert second["pci_bus_id"] == "00000000:18:00.0"
    assert (listed["driver"], listed["family"]) == ("580.65.06", "ampere")
    assert [node["path"] for node in listed["common_nodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]


async def test_cards_of_two_architectures_have_no_family_in_common(standin: Standin) -> None:
    standin.say(a_card(1, architecture=9, brand=5))

    listed = await standin.list_cards()

    assert [hardware["family"] for hardware in listed["cards"]] == ["ampere", "hopper"]
    assert listed["cards"][1]["brand"] == "geforce"
    assert listed["family"] == ""


async def test_an_architecture_newer_than_the_binding_has_no_name(standin: Standin) -> None:
    standin.say(a_card(0, architecture=99), a_card(1, architecture=99))

    assert (await standin.list_cards())["family"] == ""


@pytest.mark.parametrize(
    ("values", "reason"),
    [({"mig": 1}, "MIG is on"), ({"total": None}, "no memory"), ({"total": 0}, "no memory")],
)
async def test_a_card_that_cannot_be_shared_by_memory_is_left_out_and_named(
    standin: Standin, values: dict[str, Any], reason: str
) -> None:
    standin.say(a_card(0, **values))

    listed = await standin.list_cards()

    assert [hardware["card"]["index"] for hardware in listed["cards"]] == [1]
    ((uuid, why),) = [(card["uuid"], card["reason"]) for card in listed["left_out"]]
    assert uuid == standin.uuid(0)
    assert reason in why


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
async def test_through_the_true_calls_a_lost_card_is_unhealthy_until_it_is_back(
    standin: Standin, error: int
) -> None:
    await standin.list_cards()
    standin.say({"0.error.nvmlDeviceGetHandleByIndex_v2": error})
    lost = await standin.list_cards()
    standin.say({"0.error.nvmlDeviceGetHandleByIndex_v2": None})
    back = await standin.list_cards()

    healths = [
        [hardware["card"]["health"] for hardware in listed["cards"]] for listed in (lost, back)
    ]
    assert healths == [["unhealthy", "healthy"], ["healthy", "healthy"]]
    assert await standin.calls("nvmlInitWithFlags") == 1


async def test_a_row_that_could_not_be_remapped_makes_the_card_unhealthy(standin: Standin) -> None:
    standin.say(a_card(1, rows="0 9 0 1"))

    card = (await standin.list_cards())["cards"][1]["card"]

    assert (card["health"], card["health_reason"]) == (
        "unhealthy",
        "remapping a memory row failed",
    )
