"""Our reader of a physical card, beside nvidia-smi and beside programs of known use."""

import asyncio
import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardHardware, CardMetrics, CardSample
from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.cards.xid import Severity, severity
from fracgpu.cards.card import CardUuid
from tests.support.cuda_load import ILLEGAL_ADDRESS, CudaError, Load, said, start, using
from tests.support.waiting import until

pytestmark = [pytest.mark.card, pytest.mark.timeout(180)]

# From one reading to the next; the driver keeps samples of a second at most.
_PERIOD_S = 1.5
# Memory in use that is no process's: it grows with what the driver does for them.
_DRIVERS_OWN_MIB = 64
_PROFILED = {
    field.name
    for field in dataclasses.fields(CardMetrics)
    if field.name.endswith("_ratio") or field.name.startswith("pcie_")
} - {"pcie_replays"}


async def hardware(reader: NvmlReader, uuid: str) -> CardHardware:
    cards = (await reader.list_cards()).cards
    return next(card for card in cards if card.card.uuid == uuid)


async def sample(reader: NvmlReader, uuid: str) -> CardSample:
    found = await reader.read()
    assert not found.errors
    return found.samples[CardUuid(uuid)]


async def later(reader: NvmlReader, uuid: str, *, count: int) -> list[CardSample]:
    """Return *count* samples, each of the time since the one before."""
    await sample(reader, uuid)
    found = []
    for _ in range(count):
        await asyncio.sleep(_PERIOD_S)  # what is measured is the time itself
        found.append(await sample(reader, uuid))
    return found


async def test_a_busy_card_has_every_metric_of_its_generation(
    reader: NvmlReader, uuid: str, program: Path
) -> None:
    async with using(program, Load(idle_ms=0)):
        (found,) = await later(reader, uuid, count=1)

    missing = {name for name, value in dataclasses.asdict(found.figures).items() if value is None}
    since_hopper = (await hardware(reader, uuid)).family in {"hopper", "blackwell"}
    assert missing <= (set() if since_hopper else _PROFILED)
    assert found.figures.gpu_percent == pytest.approx(100, abs=3)


async def test_the_reader_says_what_nvidia_smi_says(reader: NvmlReader, uuid: str) -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("no nvidia-smi")
    query = "name,driver_version,pci.bus_id,index,memory.total,memory.reserved,memory.used"
    command = [smi, f"--id={uuid}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    answer = await asyncio.to_thread(subprocess.check_output, command, text=True)
    name, driver, bus, index, total, reserved, used = (
        word.strip() for word in answer.strip().split(",")
    )

    cards = await reader.list_cards()
    found = await hardware(reader, uuid)
    figures = (await sample(reader, uuid)).figures

    assert (found.card.model, cards.driver, found.pci_bus_id) == (name, driver, bus)
    assert found.card.index == int(index)
    assert figures.total_mib == int(total) == found.card.total_mib
    assert figures.reserved_mib == pytest.approx(int(reserved), abs=1)
    assert figures.used_mib == pytest.approx(int(used), abs=1)


async def test_what_processes_hold_adds_up_to_what_the_card_has_in_use(
    reader: NvmlReader, uuid: str, program: Path
) -> None:
    before = await sample(reader, uuid)
    async with using(program, Load(mib=1000)) as one, using(program, Load(mib=3000)) as two:
        found = await sample(reader, uuid)
    held = {process.pid: process.used_mib or 0 for process in found.processes}

    assert 1000 <= held[one.pid] <= 1000 + 1024
    assert held[two.pid] - held[one.pid] == 2000
    in_use, foreign = found.figures.used_mib or 0, before.figures.used_mib or 0
    assert 0 <= in_use - foreign - held[one.pid] - held[two.pid] <= _DRIVERS_OWN_MIB


async def test_the_cards_own_figures_are_the_share_of_time_that_it_works(
    reader: NvmlReader, uuid: str, program: Path
) -> None:
    async with using(program, Load(busy_ms=20, idle_ms=60)) as running:
        found = await later(reader, uuid, count=8)
        done = await running.end()
    worked = done["busy_seconds"] / done["seconds"]

    utilization = [(each.figures.gpu_percent or 0) / 100 for each in found]
    engine = [each.figures.gr_engine_ratio for each in found if each.figures.gr_engine_ratio]
    assert sum(utilization) / len(utilization) == pytest.approx(worked, abs=0.1)
    if (await hardware(reader, uuid)).family in {"hopper", "blackwell"}:
        assert sum(engine) / len(engine) == pytest.approx(worked, abs=0.1)


async def test_of_two_processes_the_busier_one_is_told(
    reader: NvmlReader, uuid: str, program: Path
) -> None:
    often, seldom = Load(busy_ms=30, idle_ms=20), Load(busy_ms=10, idle_ms=90)
    async with using(program, often) as busy, using(program, seldom) as idler:
        found = await later(reader, uuid, count=20)
        did = [(await running.end())["card_seconds"] for running in (busy, idler)]
    reported = [_reported_time(found, running.pid) for running in (busy, idler)]

    # Each of the driver's samples, some in a second, counts for one process alone.
    assert reported[0] / sum(reported) == pytest.approx(did[0] / sum(did), abs=0.2)


def _reported_time(samples: Sequence[CardSample], pid: int) -> float:
    processes = (process for each in samples for process in each.processes)
    return sum(process.sm_percent or 0 for process in processes if process.pid == pid)


async def test_a_program_that_writes_to_foreign_memory_leaves_the_card_in_service(
    reader: NvmlReader, uuid: str, program: Path
) -> None:
    before = (await sample(reader, uuid)).xids
    process = await start(program, "fault")
    with pytest.raises(CudaError) as refused:
        await said(process)
    await process.wait()
    assert refused.value.code == ILLEGAL_ADDRESS

    async def counted() -> bool:
        return (await sample(reader, uuid)).xids != before

    await until(counted, what="the XID error of the fault", limit_s=20)
    after = (await sample(reader, uuid)).xids
    new = {code for code in after if after[code] != before.get(code, 0)}
    assert {severity(code) for code in new} == {Severity.PROGRAM}
