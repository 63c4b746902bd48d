"""Each call by itself, through the true pynvml: what is absent, lost, or never returns."""

from pathlib import Path

import pynvml
import pytest

from deviceplugin.nvml_calls import driver_is_lost, error_kind
from tests.support.nvml import Standin, Unavailable, a_card, a_standin, build


@pytest.mark.parametrize("error", [3, 4, 13, 21, 25, 26])
async def test_a_figure_that_is_absent_is_asked_for_once_on_each_card(
    standin: Standin, error: int
) -> None:
    standin.say({"error.nvmlDeviceGetPowerUsage": error})
    await standin.survey()

    first, second = await standin.figures(0), await standin.figures(1)
    standin.say({"error.nvmlDeviceGetPowerUsage": None})
    third = await standin.figures(0)

    assert [it["power_w"] for it in (first, second, third)] == [None, None, None]
    assert third["gpu_percent"] == 40
    assert await standin.calls("nvmlDeviceGetPowerUsage") == 2  # once for each card
    dropped = [it["card"] for it in standin.told("figure_dropped") if it["figure"] == "power"]
    assert dropped == [standin.uuid(0), standin.uuid(1)]


async def test_functions_that_an_older_driver_lacks_drop_their_figures_alone(
    tmp_path: Path,
) -> None:
    missing = frozenset(
        {
            "nvmlDeviceGetMemoryInfo_v2", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetNumaNodeId",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlEventSetCreate",
            "nvmlDeviceGetNvLinkState", "nvmlDeviceGetTotalEnergyConsumption",
        }
    )  # fmt: skip
    library = build(tmp_path / "old", without=missing)
    async with a_standin(tmp_path, library=library) as standin:
        survey = await standin.survey()
        figures = await standin.figures()

    card = survey["cards"][0]["card"]
    assert (card["numa_node"], card["reserved_mib"]) == (None, 0)
    assert figures["energy_mj"] is None
    assert figures["xid"] is None
    assert figures["gr_engine_ratio"] is None
    assert (figures["used_mib"], figures["reserved_mib"]) == (600, None)  # version 1 adds both up
    assert (figures["gpu_percent"], figures["power_w"]) == (40, 150.5)


async def test_a_lost_driver_is_shut_down_initialised_again_and_spoken_of(
    standin: Standin,
) -> None:
    await standin.survey()
    standin.say({"error.nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_UNINITIALIZED})
    with pytest.raises(Unavailable, match="NVML: "):
        await standin.read()
    shut_down = await standin.calls("nvmlShutdown")
    standin.say({"error.nvmlDeviceGetUtilizationRates": None})

    figures = await standin.figures()

    assert figures["gpu_percent"] == 40
    assert shut_down == 1
    assert await standin.calls("nvmlInitWithFlags") == 2
    assert len(standin.told("nvml_lost")) == 1
    assert len(standin.told("nvml_opened")) == 2


async def test_a_driver_that_is_gone_for_every_card_is_begun_anew(standin: Standin) -> None:
    await standin.survey()
    standin.say({"error.nvmlDeviceGetHandleByUUID": pynvml.NVML_ERROR_UNKNOWN})
    with pytest.raises(Unavailable, match="no card can be read"):
        await standin.read()
    standin.say({"error.nvmlDeviceGetHandleByUUID": None})

    assert len((await standin.read())["readings"]) == 2
    assert await standin.calls("nvmlInitWithFlags") == 2


async def test_a_call_that_hangs_ends_in_time_and_the_reader_recovers(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=0.3) as standin:
        await standin.survey()
        standin.say({"hang.nvmlDeviceGetPowerUsage": 1})
        with pytest.raises(Unavailable, match=r"nvmlDeviceGetPowerUsage did not return in 0\.3 s"):
            await standin.read()
        with pytest.raises(Unavailable, match="nvmlDeviceGetPowerUsage has not returned yet"):
            await standin.read()
        standin.say({"hang.nvmlDeviceGetPowerUsage": None})

        for _ in range(100):
            try:
                figures = await standin.figures()
                break
            except Unavailable:
                continue
        else:
            pytest.fail("the reader did not recover")

    assert figures["power_w"] == 150.5


async def test_a_driver_that_comes_with_other_cards_is_asked_for_everything_again(
    standin: Standin,
) -> None:
    standin.say(a_card(0, power_mw=None))
    await standin.survey()
    before = (await standin.figures())["power_w"]
    standin.say({"error.nvmlSystemGetDriverVersion": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    with pytest.raises(Unavailable):
        await standin.survey()
    standin.say({"error.nvmlSystemGetDriverVersion": None, "driver": "590.1"}, a_card(0))

    survey = await standin.survey()

    assert survey["driver"] == "590.1"
    assert (before, (await standin.figures())["power_w"]) == (None, 150.5)


def test_errors_are_named_as_the_library_names_them() -> None:
    assert error_kind(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)) == "GpuIsLost"
    assert driver_is_lost(pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED))
    assert not driver_is_lost(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
