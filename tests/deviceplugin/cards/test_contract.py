"""What every reader of cards promises: NVIDIA's over a stand-in, AMD's on a tree, and simulated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from deviceplugin.cards.amd.reader import AmdReader
from deviceplugin.cards.interface import Cards, CardsUnavailableError
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib
from simulator.cards.simulated_cards import cards_document, open_cards, write_cards_file
from tests.fakes.amdgpu_tree import AmdgpuTree, open_card
from tests.support.nvml import MIB, Standin, Unavailable, a_standin
from tests.support.nvml_child import plain

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Two cards behind one reader; what it answers, as JSON; and how its driver goes away."""

    list_cards: Callable[[], Awaitable[Json]]
    read: Callable[[], Awaitable[Json]]
    lose_driver: Callable[[], None]


def in_this_process(cards: Cards, lose_driver: Callable[[], None]) -> Subject:
    async def list_cards() -> Json:
        found: Json = plain(await cards.list_cards())
        return found

    async def read() -> Json:
        found: Json = plain(await cards.read())
        return found

    return Subject(list_cards=list_cards, read=read, lose_driver=lose_driver)


def amd(root: Path) -> Subject:
    tree = AmdgpuTree(root)
    tree.card(0)
    tree.card(1)
    tree.process(7, open_card(0, client=1, mib=500, gfx_ns=5), open_card(1, client=2, mib=100))
    reader = AmdReader(dev_root=tree.dev, sys_root=tree.sys, proc_root=tree.proc)

    def lose_driver() -> None:
        (tree.sys / "class/drm").rename(tree.sys / "class/gone")

    return in_this_process(reader, lose_driver)


def simulated(root: Path) -> Subject:
    cards = [
        Card(uuid=CardUuid(f"GPU-{index}"), index=index, model="A30", total_mib=Mib(24_000))
        for index in range(2)
    ]
    nodes = {card.uuid: [f"/dev/nvidia{card.index}"] for card in cards}
    file = root / "cards.json"
    write_cards_file(file, cards_document(cards, device_nodes=nodes))
    return in_this_process(open_cards(file), file.unlink)


def nvml(standin: Standin) -> Subject:
    standin.say({"0.compute": f"7:{500 * MIB}"})
    return Subject(
        list_cards=standin.list_cards,
        read=lambda: standin.ask("read"),
        lose_driver=lambda: standin.say(
            {"error.nvmlDeviceGetCount_v2": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
        ),
    )


@pytest.fixture(params=["amd", "nvml", "simulated"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "nvml":
        library = request.getfixturevalue("nvml_library")
        async with a_standin(tmp_path, library=library) as standin:
            yield nvml(standin)
    else:
        yield {"amd": amd, "simulated": simulated}[request.param](tmp_path)


async def test_cards_are_told_apart_and_have_what_their_containers_need(subject: Subject) -> None:
    listed = await subject.list_cards()

    cards = [hardware["card"] for hardware in listed["cards"]]
    assert len({card["uuid"] for card in cards}) == 2
    assert [card["index"] for card in cards] == [0, 1]
    assert all(card["total_mib"] > card["reserved_mib"] >= 0 for card in cards)
    assert all(card["model"] and card["health"] == "healthy" for card in cards)
    own = [node["path"] for hardware in listed["cards"] for node in hardware["device_nodes"]]
    common = {node["path"] for hardware in listed["cards"] for node in hardware["common_nodes"]}
    assert len(set(own)) == 2
    assert not set(own) & common
    assert all(hardware["pci_bus_id"] for hardware in listed["cards"])
    assert listed["left_out"] == []


async def test_cards_that_have_not_changed_are_listed_as_before(subject: Subject) -> None:
    assert await subject.list_cards() == await subject.list_cards()


async def test_every_listed_card_is_measured_in_the_units_of_the_interface(
    subject: Subject,
) -> None:
    listed = await subject.list_cards()
    await subject.read()

    found = await subject.read()

    assert set(found["samples"]) == {hardware["card"]["uuid"] for hardware in listed["cards"]}
    assert found["errors"] == {}
    for hardware in listed["cards"]:
        sample = found["samples"][hardware["card"]["uuid"]]
        figures = sample["figures"]
        assert figures["total_mib"] == hardware["card"]["total_mib"]
        assert figures["used_mib"] + figures["free_mib"] <= figures["total_mib"]
        percents = [value for name, value in figures.items() if name.endswith("_percent")]
        ratios = [value for name, value in figures.items() if name.endswith("_ratio")]
        assert all(value is None or 0 <= value <= 100 for value in percents)
        assert all(value is None or 0 <= value <= 1 for value in ratios)
        assert 5 < figures["temperature_c"] < 100
        assert 10 < figures["power_w"] < 2000
        assert 100 < figures["sm_clock_mhz"] < 5000
        for process in sample["processes"]:
            assert process["sm_percent"] is None or 0 <= process["sm_percent"] <= 100


async def test_without_its_driver_the_cards_are_unknown_and_not_none(subject: Subject) -> None:
    await subject.list_cards()
    subject.lose_driver()

    with pytest.raises((CardsUnavailableError, Unavailable)):
        await subject.list_cards()
