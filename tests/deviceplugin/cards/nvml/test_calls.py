"""Each call by itself, through the real pynvml: what is absent, lost, or never returns."""

from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards.nvml.calls import (
    ABSENT,
    ASK_AGAIN_S,
    driver_is_lost,
    error_kind,
    library_is_outdated,
)
from tests.support.nvml import (
    HOPPER,
    ProcessEnds,
    Standin,
    Unavailable,
    a_card,
    a_standin,
    build,
)
from tests.support.waiting import until


@pytest.mark.parametrize("error", [3, 4, 13, 21, 25, 26])
async def test_a_figure_that_is_absent_is_asked_for_once_on_each_card(
    standin: Standin, error: int
) -> None:
    standin.say({"error.nvmlDeviceGetPowerUsage": error})
    await standin.list_cards()

    first, second = await standin.figures(0), await standin.figures(1)
    standin.say({"error.nvmlDeviceGetPowerUsage": None})
    third = await standin.figures(0)

    assert [figures["power_w"] for figures in (first, second, third)] == [None, None, None]
    assert third["gpu_percent"] == 40
    assert await standin.calls("nvmlDeviceGetPowerUsage") == 2  # once for each card
    dropped = [
        event["card"] for event in standin.logged("figure_dropped") if event["figure"] == "power"
    ]
    assert sorted(dropped) == [standin.uuid(0), standin.uuid(1)]


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
        listed = await standin.list_cards()
        figures = await standin.figures()

    card = listed["cards"][0]["card"]
    assert (card["numa_node"], card["reserved_mib"]) == (None, 601)
    assert figures["energy_mj"] is None
    assert figures["xid"] is None
    assert figures["gr_engine_ratio"] is None
    assert (figures["used_mib"], figures["reserved_mib"]) == (0, 600)
    assert (figures["gpu_percent"], figures["power_w"]) == (40, 150.5)


async def test_a_lost_driver_is_shut_down_initialised_again_and_spoken_of(
    standin: Standin,
) -> None:
    await standin.list_cards()
    standin.say({"error.nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_UNINITIALIZED})
    with pytest.raises(Unavailable, match="NVML: "):
        await standin.read()
    shut_down = await standin.calls("nvmlShutdown")
    standin.say({"error.nvmlDeviceGetUtilizationRates": None})

    figures = await standin.figures()

    assert figures["gpu_percent"] == 40
    assert shut_down == 1
    assert await standin.calls("nvmlInitWithFlags") == 2
    assert len(standin.logged("nvml_lost")) == 1
    assert len(standin.logged("nvml_opened")) == 2


async def test_a_driver_that_is_gone_for_every_card_is_begun_anew(standin: Standin) -> None:
    await standin.list_cards()
    standin.say({"error.nvmlDeviceGetHandleByUUID": pynvml.NVML_ERROR_UNKNOWN})
    with pytest.raises(Unavailable, match="no card can be read"):
        await standin.read()
    standin.say({"error.nvmlDeviceGetHandleByUUID": None})

    assert len((await standin.read())["samples"]) == 2
    assert await standin.calls("nvmlInitWithFlags") == 2


async def test_a_call_that_hangs_ends_in_time_and_the_reader_recovers(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=1.0) as standin:
        await standin.list_cards()
        standin.say({"hang.nvmlDeviceGetPowerUsage": 1})
        first, second = [(await standin.read())["errors"] for _ in range(2)]
        standin.say({"hang.nvmlDeviceGetPowerUsage": None})

        async def recovered() -> bool:
            readings = (await standin.read())["samples"]
            return {sample["figures"]["power_w"] for sample in readings.values()} == {150.5}

        await until(recovered, what="both cards are read again")

    assert set(first.values()) == {"nvmlDeviceGetPowerUsage did not return in 1 s"}
    assert set(second.values()) == {"nvmlDeviceGetPowerUsage has not returned yet"}


# Every function that tells a figure; an error of theirs leaves out the figure and nothing else.
OPTIONAL = (
    "nvmlDeviceGetMigMode", "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetViolationStatus", "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetPcieThroughput", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization", "nvmlDeviceRegisterEvents", "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetTopologyCommonAncestor",
)  # fmt: skip
# Those that speak of the driver as a whole.
OF_THE_DRIVER = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
CODES = {
    getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")
} - OF_THE_DRIVER


async def test_an_optional_figure_that_fails_with_any_error_drops_that_figure_alone(
    standin: Standin,
) -> None:
    standin.say(a_card(0, **HOPPER))
    complete = await standin.list_cards()
    await standin.read()
    # The codes that say "I do not have that" come last: those figures are not asked for again.
    codes = sorted(CODES, key=lambda code: (error_kind(pynvml.NVMLError(code)) in ABSENT, code))
    for code in codes:
        errors = {f"0.error.{function}": code for function in OPTIONAL}
        standin.say(errors)
        listed, answer = await standin.list_cards(), await standin.read()
        standin.say(dict.fromkeys(errors))

        card = listed["cards"][0]["card"]
        assert (card["health"], answer["errors"], listed["left_out"]) == ("healthy", {}, []), code
        assert (card["model"], card["total_mib"], card["reserved_mib"]) == (
            "NVIDIA H200",
            24576,
            500,
        )
        assert listed["cards"][0]["family"] == complete["cards"][0]["family"] == "hopper"
        assert listed["cards"][0]["device_nodes"] == complete["cards"][0]["device_nodes"]
        reading = answer["samples"][standin.uuid(0)]
        assert reading["figures"]["total_mib"] == 24576
        assert {reading["figures"][name] for name in ("gpu_percent", "power_w")} == {None}
        if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:  # a size, not an error, to a list
            assert not reading["processes_known"], code


async def test_one_figure_that_fails_leaves_every_other_as_it_is(standin: Standin) -> None:
    await standin.list_cards()
    before = await standin.figures()
    standin.say({"0.error.nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN})
    failing = await standin.figures()
    standin.say({"0.error.nvmlDeviceGetPowerUsage": None})

    assert {key for key in before if before[key] != failing[key]} == {"power_w"}
    assert await standin.figures() == before
    (event,) = standin.logged("figure_failed")
    assert (event["figure"], event["card"]) == ("power", standin.uuid(0))


async def test_a_card_that_never_said_whether_mig_is_on_is_not_shared(standin: Standin) -> None:
    standin.say({"0.error.nvmlDeviceGetMigMode": pynvml.NVML_ERROR_UNKNOWN})

    listed = await standin.list_cards()

    assert [hardware["card"]["index"] for hardware in listed["cards"]] == [1]
    assert [card["reason"] for card in listed["left_out"]] == [
        "it does not report whether MIG is on"
    ]


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage"])
async def test_one_hanging_card_blinds_no_other(
    nvml_library: Path, tmp_path: Path, function: str
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=1.0) as standin:
        await standin.list_cards()
        standin.say({f"0.hang.{function}": 1})
        answers = [await standin.read() for _ in range(2)]
        listed = await standin.list_cards()
        standin.say({f"0.hang.{function}": None})

        for answer in answers:
            assert list(answer["samples"]) == [standin.uuid(1)]
            assert list(answer["errors"]) == [standin.uuid(0)]
        hanging, other = (hardware["card"] for hardware in listed["cards"])
        assert (hanging["health"], other["health"]) == ("unhealthy", "healthy")
        called = function.removesuffix("_v2")
        assert hanging["health_reason"] == f"it does not answer: {called} has not returned yet"

        async def healthy() -> bool:
            cards = (await standin.list_cards())["cards"]
            return [hardware["card"]["health"] for hardware in cards] == ["healthy", "healthy"]

        await until(healthy, what="the card answers again")


async def test_a_card_that_hangs_from_the_start_is_left_out_by_its_number(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=1.0) as standin:
        standin.say({"0.hang.nvmlDeviceGetHandleByIndex_v2": 1})

        listed = await standin.list_cards()

        assert [hardware["card"]["index"] for hardware in listed["cards"]] == [1]
        ((uuid, reason),) = [(card["uuid"], card["reason"]) for card in listed["left_out"]]
        assert uuid == "card 0"
        assert "does not answer" in reason


async def test_links_and_events_of_a_hanging_card_hold_up_nothing(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=1.0) as standin:
        standin.say({"0.hang.nvmlDeviceGetNvLinkState": 1, "0.hang.nvmlDeviceRegisterEvents": 1})

        for _ in range(2):
            listed = await standin.list_cards()
            assert [hardware["card"]["health"] for hardware in listed["cards"]] == [
                "healthy",
                "healthy",
            ]
            assert len((await standin.read())["samples"]) == 2


async def test_cards_are_let_go_of_side_by_side(standin: Standin) -> None:
    standin.say({"cards": 16}, *(a_card(index, **HOPPER) for index in range(16)))
    await standin.list_cards()
    await standin.read()
    # One after the other, the first would not return before its limit.
    standin.say({"together.nvmlGpmSampleFree": 16})

    await standin.ask("close")

    assert standin.logged("nvml_not_shut_down") == []
    assert await standin.ask("live_samples") == 0


async def test_cards_that_hang_are_let_go_of_within_one_bound(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=2.0) as standin:
        standin.say({"cards": 16}, *(a_card(index, **HOPPER) for index in range(16)))
        await standin.list_cards()
        await standin.read()
        standin.say({"hang.nvmlGpmSampleFree": 1})

        # 32 s one after the other.
        await standin.ask("close", limit_s=16.0)

        assert len(standin.logged("nvml_not_shut_down")) == 16
        assert await standin.calls("nvmlShutdown") == 1


@pytest.mark.parametrize(
    ("function", "called"),
    [("nvmlInitWithFlags", "nvml_init"), ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")],
)
async def test_a_driver_that_hangs_for_long_ends_the_process(
    nvml_library: Path, tmp_path: Path, function: str, called: str
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=0.3) as standin:
        standin.say({f"hang.{function}": 1})

        async def it_hangs() -> bool:
            """Report whether it is this call, and none that a busy machine delays: that returns."""
            with pytest.raises(Unavailable, match="NVML hangs") as caught:
                await standin.list_cards()
            return f"{called} has not returned yet" in str(caught.value)

        await until(it_hangs, what=f"{called} hangs")
        await standin.ask("wait 90")
        with pytest.raises(ProcessEnds, match="has not answered for 90 s"):
            await standin.list_cards()


async def test_a_driver_that_answers_again_in_time_ends_nothing(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=0.3) as standin:
        for _ in range(2):
            standin.say({"hang.nvmlDeviceGetCount_v2": 1})
            with pytest.raises(Unavailable, match="NVML hangs"):
                await standin.list_cards()
            standin.say({"hang.nvmlDeviceGetCount_v2": None})
            await standin.ask("wait 60")
            await until(standin.answers, what="the driver answers")


async def test_a_library_that_does_not_match_the_driver_any_more_ends_the_process(
    standin: Standin,
) -> None:
    await standin.list_cards()
    standin.say({"error.nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH})

    with pytest.raises(ProcessEnds, match="the driver was replaced"):
        await standin.read()

    standin.say({"error.nvmlDeviceGetPowerUsage": None})
    standin.say({"error.nvmlDeviceGetCount_v2": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH})
    with pytest.raises(ProcessEnds, match="the driver was replaced"):
        await standin.list_cards()


async def test_a_library_that_never_matched_is_reported_for_a_minute_before_the_process_ends(
    standin: Standin,
) -> None:
    standin.say({"error.nvmlInitWithFlags": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH})

    with pytest.raises(Unavailable):
        await standin.list_cards()
    await standin.ask("wait 59")
    with pytest.raises(Unavailable):
        await standin.read()
    await standin.ask("wait 2")
    with pytest.raises(ProcessEnds, match="the driver was replaced"):
        await standin.list_cards()


async def test_a_driver_that_comes_with_other_cards_is_asked_for_everything_again(
    standin: Standin,
) -> None:
    standin.say(a_card(0, power_mw=None))
    await standin.list_cards()
    before = (await standin.figures())["power_w"]
    standin.say({"error.nvmlSystemGetDriverVersion": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    with pytest.raises(Unavailable):
        await standin.list_cards()
    standin.say({"error.nvmlSystemGetDriverVersion": None, "driver": "590.1"}, a_card(0))

    listed = await standin.list_cards()

    assert {hardware["driver"] for hardware in listed["cards"]} == {"590.1"}
    assert (before, (await standin.figures())["power_w"]) == (None, 150.5)


def test_errors_are_named_as_the_library_names_them() -> None:
    assert error_kind(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)) == "GpuIsLost"
    assert driver_is_lost(pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED))
    assert not driver_is_lost(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert library_is_outdated(pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))


@pytest.mark.parametrize(
    "error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION]
)
async def test_one_such_answer_loses_neither_a_card_nor_its_heat_for_longer_than_minutes(
    standin: Standin, error: int
) -> None:
    await standin.list_cards()
    lost = {
        f"0.error.{function}": error
        for function in (
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        )
    }
    standin.say(lost)
    without = await standin.figures(0)
    (listed, _) = (await standin.list_cards())["cards"]
    standin.say(dict.fromkeys(lost))

    (again, _) = (await standin.list_cards())["cards"]
    soon = await standin.figures(0)
    await standin.ask(f"wait {ASK_AGAIN_S + 1}")
    later = await standin.figures(0)

    assert (without["gpu_percent"], without["used_mib"]) == (None, None)
    assert listed["card"]["uuid"] == standin.uuid(0)
    assert listed["card"]["health_reason"] == "the driver does not report its memory"
    assert again["card"]["health"] == "healthy"
    assert (soon["gpu_percent"], later["gpu_percent"]) == (None, 40)


async def test_a_card_without_events_for_once_has_them_after_minutes(standin: Standin) -> None:
    standin.say({"0.error.nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NO_PERMISSION})
    await standin.list_cards()
    without = (await standin.figures(0))["xid"]
    standin.say({"0.error.nvmlDeviceRegisterEvents": None})
    await standin.list_cards()
    soon = (await standin.figures(0))["xid"]

    await standin.ask(f"wait {ASK_AGAIN_S + 1}")
    await standin.list_cards()

    assert (without, soon, (await standin.figures(0))["xid"]) == (None, None, 0)
