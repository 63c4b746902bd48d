"""Both implementations of the cards interface behave alike."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.cards.call_thread import CallThread, StuckError
from deviceplugin.cards.interface import Cards
from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.cards.xid import XIDS, Severity, severity, xid_meaning, xid_text
from process.clock import SystemClock
from simulator.cards.simulated_cards import SimulatedCards, cards_document, write_cards_file
from tests.deviceplugin.builders import a_card
from tests.fakes.nvml import FakeNvml, FakeNvmlCard
from tests.support.waiting import until


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


async def test_a_call_returns_what_the_function_returns() -> None:
    thread = CallThread("test")

    assert await thread.call(pow, 2, 10, timeout_s=5) == 1024
    assert await thread.call(int, "ff", base=16, timeout_s=5) == 255


async def test_an_error_of_the_function_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await CallThread("test").call(int, "x", timeout_s=5)


async def test_all_calls_share_one_thread_that_does_not_hold_up_the_exit() -> None:
    thread = CallThread("test")

    first = await thread.call(threading.current_thread, timeout_s=5)
    second = await thread.call(threading.current_thread, timeout_s=5)

    assert first is second
    assert first.daemon


async def test_a_call_that_hangs_blocks_the_next_until_it_returns() -> None:
    thread, release = CallThread("test"), threading.Event()

    with pytest.raises(StuckError, match=r"wait did not return in 0\.05 s"):
        await thread.call(release.wait, 10, timeout_s=0.05)
    with pytest.raises(StuckError, match="wait has not returned yet"):
        await thread.call(int, "1", timeout_s=5)
    release.set()

    async def answers() -> bool:
        try:
            return await thread.call(int, "1", timeout_s=5) == 1
        except StuckError:
            return False

    await until(answers, what="the thread is free again")


# What NVIDIA's own device plugin passes over as errors of programs (internal/rm/health.go).
PASSED_OVER_BY_NVIDIA = (13, 31, 43, 45, 68, 109)


@pytest.mark.parametrize("code", [*PASSED_OVER_BY_NVIDIA, 8, 11, 25, 32, 39, 69, 80, 94, 126, 139])
def test_what_a_tenant_can_cause_closes_no_card(code: int) -> None:
    assert severity(code) is Severity.PROGRAM


@pytest.mark.parametrize("code", [37, 44, 63, 92, 93, 106, 121, 137, 141, 160])
def test_what_the_catalog_has_ignored_closes_no_card(code: int) -> None:
    assert severity(code) is Severity.NOTICE


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 145])
def test_what_the_catalog_wants_a_reset_or_an_inquiry_for_closes_the_card(code: int) -> None:
    assert severity(code) is Severity.CARD


@pytest.mark.parametrize("code", [1, 9, 47, 157, 171, 999])
def test_what_is_not_known_or_failed_to_be_repaired_closes_the_card(code: int) -> None:
    assert severity(code) is Severity.CARD


def test_a_code_has_the_same_name_in_events_and_in_metrics() -> None:
    for code, xid in XIDS.items():
        assert xid_text(code) == f"XID {code} ({xid.name})"
        assert xid_meaning(code) == xid.name
    assert (xid_text(999), xid_meaning(999)) == ("XID 999", "unknown error")
    assert xid_meaning(0) == "no error"
