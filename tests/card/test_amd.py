"""Our reader of physical AMD cards, beside the kernel's own files and AMD's tools.

Nobody has run these yet: there was no AMD card. They are for whoever has one.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.cards.amd import sysfs
from deviceplugin.cards.amd.reader import AmdReader
from deviceplugin.cards.interface import CardHardware

pytestmark = [pytest.mark.card, pytest.mark.timeout(180)]


@pytest.fixture(scope="session")
def uuid() -> str:
    """Return no card of NVIDIA's: these tests need none."""
    return ""


@pytest.fixture
def devices() -> tuple[sysfs.Device, ...]:
    found = sysfs.devices(Path("/sys"))
    if not found:
        pytest.skip("no card uses the kernel's driver amdgpu")
    return found


@pytest.fixture
async def reader(devices: tuple[sysfs.Device, ...]) -> AsyncIterator[AmdReader]:
    assert devices
    opened = AmdReader()
    yield opened
    await opened.close()


@pytest.fixture
async def cards(reader: AmdReader) -> tuple[CardHardware, ...]:
    listed = await reader.list_cards()
    if not listed.cards:
        reasons = "; ".join(f"{each.uuid}: {each.reason}" for each in listed.left_out)
        pytest.skip(f"no AMD card that can be shared: {reasons}")
    return listed.cards


async def test_every_card_is_listed_or_left_out_with_a_reason(
    reader: AmdReader, devices: tuple[sysfs.Device, ...]
) -> None:
    listed = await reader.list_cards()

    assert len(listed.cards) + len(listed.left_out) == len(devices)
    assert all(each.reason for each in listed.left_out)


async def test_a_card_has_files_for_its_containers_and_its_compute_units(
    cards: tuple[CardHardware, ...],
) -> None:
    for hardware in cards:
        for node in (*hardware.device_nodes, *hardware.common_nodes):
            assert await asyncio.to_thread(Path(node.path).is_char_device), node
        assert hardware.compute_units > 0
        assert hardware.family.startswith("gfx")
        assert hardware.card.numa_node is None or hardware.card.numa_node >= 0


async def test_a_card_measures_all_that_the_rebalancer_needs(
    reader: AmdReader, cards: tuple[CardHardware, ...]
) -> None:
    found = await reader.read()

    assert found.errors == {}
    for hardware in cards:
        figures = found.samples[hardware.card.uuid].figures
        assert figures.gpu_percent is not None
        assert figures.used_mib is not None
        assert figures.temperature_c is not None
        assert 10 < figures.temperature_c < 120
        assert figures.power_w is not None
        assert 1 < figures.power_w < 2000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads every process")
async def test_every_process_can_be_read(
    reader: AmdReader, cards: tuple[CardHardware, ...]
) -> None:
    found = await reader.read()

    assert all(found.samples[hardware.card.uuid].processes_known for hardware in cards)


async def test_rocm_counts_the_same_compute_units_in_the_same_order(
    cards: tuple[CardHardware, ...],
) -> None:
    rocminfo = shutil.which("rocminfo") or shutil.which("/opt/rocm/bin/rocminfo")
    if rocminfo is None:
        pytest.skip("no rocminfo")
    text = await asyncio.to_thread(subprocess.check_output, [rocminfo], text=True)
    units, kind = [], ""
    for line in text.splitlines():
        name, _, value = line.strip().partition(":")
        if name == "Device Type":
            kind = value.strip()
        elif name == "Compute Unit" and kind == "GPU":
            units.append(int(value))

    in_order = sorted(cards, key=lambda hardware: hardware.card.index)
    assert [hardware.compute_units for hardware in in_order] == units
