"""Both implementations of the cards interface behave alike."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.cards.interface import Cards
from deviceplugin.cards.nvml.reader import NvmlReader
from process.clock import SystemClock
from simulator.cards.simulated_cards import SimulatedCards, cards_document, write_cards_file
from tests.deviceplugin.builders import a_card
from tests.fakes.nvml import FakeNvml, FakeNvmlCard


@pytest.fixture(params=["nvml", "simulated"])
async def cards(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cards]:
    made: Cards
    if request.param == "nvml":
        library = FakeNvml(FakeNvmlCard(uuid="GPU-a"), FakeNvmlCard(uuid="GPU-b"))
        made = NvmlReader(timeout_s=2.0, library=library)
    else:
        file = tmp_path / "cards.json"
        write_cards_file(file, cards_document([a_card("GPU-b", index=1), a_card("GPU-a")]))
        made = SimulatedCards(file, SystemClock())
    yield made
    await made.close()


async def test_cards_are_listed_by_index_with_distinct_uuids(cards: Cards) -> None:
    listed = await cards.list_cards()

    assert [hardware.card.index for hardware in listed.cards] == [0, 1]
    assert [hardware.card.uuid for hardware in listed.cards] == ["GPU-a", "GPU-b"]
    assert listed.driver


async def test_a_reading_covers_every_listed_card(cards: Cards) -> None:
    listed = await cards.list_cards()

    answer = await cards.read()

    assert set(answer.samples) == {hardware.card.uuid for hardware in listed.cards}
    assert not answer.errors


async def test_memory_figures_add_up_to_the_card(cards: Cards) -> None:
    listed = await cards.list_cards()

    answer = await cards.read()

    for hardware in listed.cards:
        figures = answer.samples[hardware.card.uuid].figures
        parts = [figures.used_mib, figures.free_mib, figures.reserved_mib]
        assert sum(part for part in parts if part is not None) == hardware.card.total_mib


async def test_percentages_stay_between_0_and_100(cards: Cards) -> None:
    await cards.list_cards()

    for reading in (await cards.read()).samples.values():
        assert reading.figures.gpu_percent is not None
        assert 0 <= reading.figures.gpu_percent <= 100
