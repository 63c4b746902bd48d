"""Every metric through the real ctypes calls, in the units it is exported in."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.nvml import HOPPER, MIB, Standin, a_card, a_standin, build
from tests.support.waiting import until

PROFILED = (
    "gr_engine_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_ratio", "dram_ratio",
    "fp64_ratio", "fp32_ratio", "fp16_ratio",
)  # fmt: skip


async def test_a_card_without_gpm_gives_every_other_figure(standin: Standin) -> None:
    await standin.list_cards()

    figures = await standin.figures()

    assert figures == {
        "gpu_percent": 40,
        "memory_copy_percent": 10,
        "encoder_percent": 3,
        "decoder_percent": 4,
        "total_mib": 24576,
        "used_mib": 100,
        "free_mib": 24576 - 500 - 101,  # whole MiB, rounded down
        "reserved_mib": 500,
        "temperature_c": 48,
        "memory_temperature_c": 51.0,
        "power_w": 150.5,
        "energy_mj": 5_000_000_000,  # more than 32 bits
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1593,
        "pcie_replays": 2,
        "power_violation_ns": 1111,
        "thermal_violation_ns": 2222,
        "vgpu_license": 0,
        "xid": 0,
        "remapped_rows_correctable": 1,
        "remapped_rows_uncorrectable": 2,
        "row_remap_failed": 0,
        "ecc_uncorrected": 0,
        **dict.fromkeys(PROFILED),
        "pcie_tx_bytes_per_s": 3000,
        "pcie_rx_bytes_per_s": 4000,
    }


async def profiled(standin: Standin) -> Any:
    """Read until a second has passed between two samples."""
    figures: dict[str, Any] = {}

    async def there() -> bool:
        figures.update(await standin.figures())
        return figures["gr_engine_ratio"] is not None

    await until(there, what="a second has passed between two samples")
    return figures


async def test_a_card_with_gpm_is_profiled_over_a_second_or_more(standin: Standin) -> None:
    standin.say(a_card(0, **{**HOPPER, "gpm.3": "elapsed"}))
    await standin.list_cards()
    first = await standin.figures()
    figures = await profiled(standin)

    assert first["gr_engine_ratio"] is None
    assert figures["sm_active_ratio"] == 0.105
    assert figures["sm_occupancy_ratio"] >= 0.01  # the stand-in's per cent are seconds apart
    assert figures["pcie_tx_bytes_per_s"] == 2 * 1024 * 1024
    assert await standin.calls("nvmlDeviceGetPcieThroughput") > 0  # by the other card
    assert await standin.ask("live_samples") == 1
    await standin.ask("close")
    assert await standin.ask("live_samples") == 0


async def test_a_metric_that_a_profiled_card_lacks_is_left_out_alone(standin: Standin) -> None:
    standin.say(a_card(0, **{**HOPPER, "gpm.11": None}))
    await standin.list_cards()

    figures = await profiled(standin)

    missing = [name for name in PROFILED if figures[name] is None]
    assert missing == ["fp64_ratio"]


async def test_percentages_that_cannot_be_are_no_figures(standin: Standin) -> None:
    standin.say(a_card(0, gpu=101, copy=4294967295, encoder=900))
    await standin.list_cards()

    figures = await standin.figures()

    for name in ("gpu_percent", "memory_copy_percent", "encoder_percent"):
        assert figures[name] is None
    assert figures["decoder_percent"] == 4


async def test_a_virtual_card_has_no_license_figure_that_we_could_vouch_for(
    standin: Standin,
) -> None:
    standin.say(a_card(0, virtualization=pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU))
    await standin.list_cards()

    assert (await standin.figures())["vgpu_license"] is None


async def test_a_card_that_is_lost_in_the_middle_of_a_reading_is_a_trouble_of_its_own(
    standin: Standin,
) -> None:
    await standin.list_cards()
    standin.say({"1.error.nvmlDeviceGetMemoryInfo_v2": pynvml.NVML_ERROR_GPU_IS_LOST})
    standin.say({"1.error.nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_GPU_IS_LOST})

    answer = await standin.read()

    assert list(answer["samples"]) == [standin.uuid(0)]
    assert list(answer["errors"]) == [standin.uuid(1)]


@pytest.mark.parametrize("lists", [True, False])
async def test_what_an_older_driver_keeps_for_itself_is_reserved_and_not_in_use(
    tmp_path: Path, *, lists: bool
) -> None:
    missing = {"nvmlDeviceGetMemoryInfo_v2"}
    if not lists:
        kinds = ("Compute", "Graphics", "MPSCompute")
        missing |= {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in kinds}
    library = build(tmp_path / "old", without=frozenset(missing))
    async with a_standin(tmp_path, library=library) as standin:
        standin.say({"0.used": 0, "1.used": 9_000 * MIB, "1.compute": f"7:{9_000 * MIB}"})
        reserved = [
            hardware["card"]["reserved_mib"] for hardware in (await standin.list_cards())["cards"]
        ]
        idle = await standin.figures()
        # Somebody's program, and memory that nobody on the list holds.
        standin.say({"0.used": 6_000 * MIB, "0.compute": f"8:{2_000 * MIB}"})
        busy = await standin.figures()
        later = [
            hardware["card"]["reserved_mib"] for hardware in (await standin.list_cards())["cards"]
        ]

    assert reserved == later == [500, 500 if lists else 0]
    assert (idle["used_mib"], idle["reserved_mib"]) == (0, 500)
    assert (busy["used_mib"], busy["reserved_mib"]) == (6_000, 500)
