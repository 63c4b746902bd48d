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
from fracgpu.cards.card import CardUuid
from tests.fakes.nvml import FakeNvml, FakeNvmlCard
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


async def test_links_are_known_once_both_cards_are(reader: NvmlReader) -> None:
    await reader.list_cards()
    listed = await reader.list_cards()

    assert [dict(hardware.card.links) for hardware in listed.cards] == [{B: 30}, {A: 30}]


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
