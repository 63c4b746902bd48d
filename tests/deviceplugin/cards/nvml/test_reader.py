"""The NVML reader over the real pynvml: without a driver, and with a stand-in for its library."""

import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from deviceplugin.cards.interface import CardsUnavailableError
from deviceplugin.cards.nvml.card import numa_node
from deviceplugin.cards.nvml.reader import NvmlReader
from tests.support.nvml import HOPPER, MIB, Standin, Unavailable, a_card, a_standin, build
from tests.support.waiting import until


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


async def test_loops_that_begin_together_open_the_library_once(standin: Standin) -> None:
    await standin.ask("together")
    for _ in range(2):
        await standin.ask("close")

    # NVML counts: it releases the driver only once it was shut down as often as initialised.
    calls = [await standin.calls(name) for name in ("nvmlInitWithFlags", "nvmlShutdown")]
    assert calls == [1, 1]


async def test_an_opening_that_returns_too_late_is_not_opened_once_more(
    nvml_library: Path, tmp_path: Path
) -> None:
    async with a_standin(tmp_path, library=nvml_library, timeout_s=0.3) as standin:
        standin.say({"hang.nvmlInitWithFlags": 1})
        with pytest.raises(Unavailable, match="NVML hangs"):
            await standin.list_cards()
        standin.say({"hang.nvmlInitWithFlags": None})

        await until(standin.answers, what="the reader works once the call has returned")
        await standin.ask("close")
        calls = [await standin.calls(name) for name in ("nvmlInitWithFlags", "nvmlShutdown")]

    assert calls == [1, 1]


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
            "limits_mib": 0,
            "errors": [],
            "links": {},
        },
        "pci_bus_id": "00000000:17:00.0",
        "driver": "580.65.06",
        "device_nodes": [{"path": "/dev/nvidia0", "host_path": ""}],
        "common_nodes": [
            {"path": "/dev/nvidiactl", "host_path": ""},
            {"path": "/dev/nvidia-uvm", "host_path": ""},
        ],
        "family": "ampere",
        "brand": "nvidia",
        "compute_units": 0,
    }
    assert second["pci_bus_id"] == "00000000:18:00.0"
    assert (second["driver"], second["family"]) == ("580.65.06", "ampere")


async def test_a_card_has_the_device_file_that_the_driver_has_now_or_is_not_shared(
    standin: Standin,
) -> None:
    await standin.list_cards()
    # Both were given to virtual machines, and came back in the other order.
    standin.say(a_card(0, minor=1), a_card(1, minor=0), a_card(2, minor=None), cards=3)

    listed = await standin.list_cards()

    files = [node["path"] for card in listed["cards"] for node in card["device_nodes"]]
    assert files == ["/dev/nvidia1", "/dev/nvidia0"]
    assert [card["reason"] for card in listed["left_out"]] == ["it does not report its device file"]


async def test_each_card_says_its_architecture(standin: Standin) -> None:
    standin.say(a_card(1, architecture=9, brand=5))

    listed = await standin.list_cards()

    assert [hardware["family"] for hardware in listed["cards"]] == ["ampere", "hopper"]
    assert listed["cards"][1]["brand"] == "geforce"
    # Newer than the binding: it has no name.
    standin.say(a_card(0, architecture=99), a_card(1, architecture=99))
    unknown = await standin.list_cards()
    assert [hardware["family"] for hardware in unknown["cards"]] == ["", ""]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mig": 1}, "MIG is on"),
        ({"total": None}, "no memory"),
        ({"total": 0}, "no memory"),
        ({"total": 2**64 - 1}, "no memory"),
        ({"used": 2**64 - 1}, "no memory"),
        ({"reserved": 2**63}, "no memory"),
    ],
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


@pytest.mark.parametrize(
    "loss",
    [
        {"0.error.nvmlDeviceGetHandleByIndex_v2": pynvml.NVML_ERROR_GPU_IS_LOST},
        {"0.error.nvmlDeviceGetHandleByIndex_v2": pynvml.NVML_ERROR_UNKNOWN},
        {"0.total": 2**64 - 1},
        {"0.used": 2**64 - 1},
    ],
)
async def test_through_the_true_calls_a_lost_card_is_unhealthy_until_it_is_back(
    standin: Standin, loss: dict[str, int]
) -> None:
    await standin.list_cards()
    standin.say(loss)
    lost = await standin.list_cards()
    standin.say(dict.fromkeys(loss), a_card(0))
    back = await standin.list_cards()

    healths = [
        [hardware["card"]["health"] for hardware in listed["cards"]] for listed in (lost, back)
    ]
    assert healths == [["unhealthy", "healthy"], ["healthy", "healthy"]]
    assert await standin.calls("nvmlInitWithFlags") == 1


@pytest.mark.parametrize("values", [{"cards": 2**32 - 1}, {"1.uuid": a_card(0)["0.uuid"]}])
async def test_more_cards_than_there_can_be_are_no_list(
    standin: Standin, values: dict[str, Any]
) -> None:
    standin.say(values)

    with pytest.raises(Unavailable):
        await standin.list_cards()


async def test_what_is_read_of_a_card_is_its_own_although_another_gets_its_index_meanwhile(
    standin: Standin,
) -> None:
    standin.say({"cards": 3}, a_card(0, gpu=0), a_card(1, gpu=1), a_card(2, gpu=2))
    await standin.list_cards()
    standin.say({"2.hang.nvmlDeviceGetPcieThroughput": 1})
    standin.begin("read")

    async def two_are_read() -> bool:
        return await standin.calls("nvmlDeviceGetPcieThroughput") == 5

    await until(two_are_read, what="the last card hangs, the others are read")
    uuids = [standin.uuid(index) for index in range(3)]
    standin.say({"cards": 2, "1.uuid": uuids[2]})  # the second has left the bus
    await standin.list_cards()
    standin.say({"2.hang.nvmlDeviceGetPcieThroughput": None})
    samples = (await standin.answered())["samples"]

    assert [samples[uuid]["figures"]["gpu_percent"] for uuid in uuids] == [0, 1, 2]


async def test_a_row_that_could_not_be_remapped_makes_the_card_unhealthy(standin: Standin) -> None:
    standin.say(a_card(1, rows="0 9 0 1"))

    card = (await standin.list_cards())["cards"][1]["card"]

    assert (card["health"], card["health_reason"]) == (
        "unhealthy",
        "remapping a memory row failed",
    )


@pytest.mark.parametrize(
    ("action", "wants"),
    [
        (pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, "gpu-reset"),
        (pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P, "drain-p2p"),
        (99, "recovery action 99"),
    ],
)
async def test_a_card_is_unhealthy_until_what_the_driver_wants_after_an_error_was_done(
    standin: Standin, action: int, wants: str
) -> None:
    field = f"1.field.{pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION}"
    said = []
    # The driver says it also to a process that did not see the error; once it cannot be asked.
    for answer in (action, None, pynvml.NVML_GPU_RECOVERY_ACTION_NONE):
        standin.say({field: answer})
        card = (await standin.list_cards())["cards"][1]["card"]
        said.append((card["health"], card["health_reason"]))

    reason = f"after an error the driver wants {wants}"
    assert said == [("unhealthy", reason), ("unhealthy", reason), ("healthy", "")]


@pytest.mark.parametrize(
    ("bus_id", "folder", "text", "node"),
    [
        ("00000000:17:00.0", "0000:17:00.0", "1\n", 1),
        ("00000000:AF:00.0", "0000:af:00.0", "0\n", 0),  # the kernel writes small letters
        ("00010000:01:00.0", "10000:01:00.0", "3\n", 3),  # a domain beyond four digits
        ("0000:17:00.0", "0000:17:00.0", "2", 2),
        ("00000000:17:00.0", "0000:17:00.0", "-1\n", None),  # no NUMA nodes on this machine
        ("00000000:17:00.0", "0000:17:00.0", "what?", None),
        ("00000000:17:00.0", "0000:18:00.0", "1\n", None),
        ("", "0000:17:00.0", "1\n", None),
    ],
)
def test_the_numa_node_is_that_of_the_pci_device(
    tmp_path: Path, bus_id: str, folder: str, text: str, node: int | None
) -> None:
    device = tmp_path / "bus/pci/devices" / folder
    device.mkdir(parents=True)
    (device / "numa_node").write_text(text)

    assert numa_node(tmp_path, bus_id) == node


Links = dict[tuple[int, int], int]


async def distances(standin: Standin) -> Links:
    listed = await standin.list_cards()
    index = {hardware["card"]["uuid"]: hardware["card"]["index"] for hardware in listed["cards"]}
    return {
        (index[hardware["card"]["uuid"]], index[other]): distance
        for hardware in listed["cards"]
        for other, distance in hardware["card"]["links"].items()
    }


def both(one: int, other: int, distance: int) -> Links:
    return {(one, other): distance, (other, one): distance}


@pytest.mark.parametrize(
    ("zero", "one", "distance"),
    [
        pytest.param({}, {}, 40, id="pcie-level"),
        pytest.param({"ancestor.1": pynvml.NVML_TOPOLOGY_INTERNAL}, {}, 10, id="one-board"),
        pytest.param({"nvlink": "down down"}, {"nvlink": "down"}, 40, id="links-down"),
        pytest.param({"nvlink": "1 down 1"}, {"nvlink": "0 0"}, 8, id="two-links"),
        pytest.param({"nvlink": " ".join("1" * 12)}, {}, 1, id="twelve-links"),
        pytest.param({"nvlink": " ".join(["switch"] * 18)}, {"nvlink": "switch"}, 9, id="switch"),
        pytest.param({"nvlink": "switch switch"}, {"nvlink": "down"}, 40, id="one-on-the-switch"),
    ],
)
async def test_nvlink_is_nearer_than_pcie_and_more_links_are_nearer(
    standin: Standin, zero: dict[str, Any], one: dict[str, Any], distance: int
) -> None:
    standin.say(a_card(0, **{"ancestor.1": 40, **zero}), a_card(1, **one))

    assert await distances(standin) == both(0, 1, distance)


async def test_a_distance_that_nobody_can_tell_is_left_out(standin: Standin) -> None:
    assert await distances(standin) == {}


async def test_distances_are_measured_once_for_each_set_of_cards(standin: Standin) -> None:
    standin.say(a_card(0, **{"ancestor.1": 20, "ancestor.2": 50}))
    first = await distances(standin)
    again = await distances(standin)
    calls = await standin.calls("nvmlDeviceGetTopologyCommonAncestor")
    standin.say({"cards": 3}, a_card(2), {"1.ancestor.2": 30})

    third = await distances(standin)

    assert first == again == both(0, 1, 20)
    assert calls == 1
    assert third == {**both(0, 1, 20), **both(0, 2, 50), **both(1, 2, 30)}


async def test_a_card_that_cannot_be_reached_keeps_the_distances_it_had(standin: Standin) -> None:
    standin.say(a_card(0, **{"ancestor.1": 20}))
    before = await distances(standin)
    standin.say({"1.error.nvmlDeviceGetHandleByIndex_v2": pynvml.NVML_ERROR_GPU_IS_LOST})

    after = await distances(standin)

    assert before == both(0, 1, 20)
    assert after == {(1, 0): 20}  # the card that answers has nobody left to be near to


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
    """Read two samples that are further apart than a second."""
    await standin.figures()
    await standin.ask("wait 2")
    return await standin.figures()


async def test_a_card_with_gpm_is_profiled_over_a_second_or_more(standin: Standin) -> None:
    standin.say(a_card(0, **HOPPER))
    await standin.list_cards()
    first = await standin.figures()
    await standin.ask("wait -60")  # however busy this machine is
    too_soon, samples = await standin.figures(), await standin.calls("nvmlGpmSampleGet")
    await standin.ask("wait 60")
    figures = await profiled(standin)

    assert first["gr_engine_ratio"] is too_soon["gr_engine_ratio"] is None
    assert samples == 1
    assert figures["sm_active_ratio"] == 0.105
    assert await standin.calls("nvmlGpmSampleAlloc") >= 2
    assert figures["pcie_tx_bytes_per_s"] == 2 * 1024 * 1024
    assert await standin.calls("nvmlDeviceGetPcieThroughput") > 0  # by the other card
    assert await standin.ask("live_samples") == 1
    standin.say({"0.error.nvmlGpmSampleGet": pynvml.NVML_ERROR_GPU_IS_LOST})
    assert (await profiled(standin))["gr_engine_ratio"] is None
    assert await standin.ask("live_samples") == 1
    await standin.ask("close")
    assert await standin.ask("live_samples") == 0
    assert await standin.calls("nvmlGpmQueryDeviceSupport") == 2  # the other card has none


async def test_a_metric_that_a_profiled_card_lacks_is_left_out_alone(standin: Standin) -> None:
    standin.say(a_card(0, **{**HOPPER, "gpm.11": None}))
    await standin.list_cards()

    figures = await profiled(standin)

    missing = [name for name in PROFILED if figures[name] is None]
    assert missing == ["fp64_ratio"]


async def test_amounts_that_cannot_be_are_no_figures(standin: Standin) -> None:
    lost = {"power_mw": 2**32 - 1, "energy_mj": 2**64 - 1, "temperature.0": 2**32 - 1}
    standin.say(a_card(0, gpu=101, copy=4294967295, encoder=900, **lost, **{"field.82": 2**32 - 1}))
    await standin.list_cards()

    figures = await standin.figures()

    percentages = ("gpu_percent", "memory_copy_percent", "encoder_percent")
    degrees = ("temperature_c", "memory_temperature_c")
    for name in (*percentages, "power_w", "energy_mj", *degrees):
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
    full = {"used": 9_000 * MIB, "reserved": 300 * MIB, "compute": f"7:{9_000 * MIB}"}
    # Somebody's program, and memory that nobody on the list holds.
    in_use = {"used": 6_000 * MIB, "compute": f"8:{2_000 * MIB}"}
    async with a_standin(tmp_path, library=library) as standin:

        async def reserved() -> list[int]:
            listed = await standin.list_cards()
            return [hardware["card"]["reserved_mib"] for hardware in listed["cards"]]

        standin.say(a_card(0, used=0), a_card(1, **full))
        first = await reserved()
        idle = await standin.figures()
        standin.say(a_card(0, **in_use))
        busy = await standin.figures()
        later = await reserved()
        one, other = standin.uuid(0), standin.uuid(1)
        standin.say(a_card(0, uuid=other, **full), a_card(1, uuid=one, **in_use))
        places_changed = await reserved()

    assert first == later == [500, 300 if lists else 0] == places_changed[::-1]
    assert (idle["used_mib"], idle["reserved_mib"]) == (0, 500)
    assert (busy["used_mib"], busy["reserved_mib"]) == (6_000, 500)


async def test_three_lists_are_one_with_the_largest_memory_of_each_process(
    standin: Standin,
) -> None:
    standin.say(
        a_card(
            0,
            compute=f"7:{300 * MIB} 8:none 9:{10 * MIB}",
            graphics=f"9:{20 * MIB} 10:{5 * MIB + 1}",
            mps=f"8:{64 * MIB} 7:none",
            samples="7:1000:10 7:2000:35 9:1500:20 99:2000:3",
        )
    )
    await standin.list_cards()

    assert await standin.processes() == [
        (7, 300, 35.0),  # the newest of two samples
        (8, 64, 0.0),  # no sample: idle
        (9, 20, 20.0),
        (10, 5, 0.0),
    ]


async def test_the_use_of_mps_clients_is_unknown_where_the_server_is_said_to_be_busy(
    standin: Standin,
) -> None:
    # What an H100 with driver 580 lists: all time is the server's (9), and 10 is no client.
    lists = {
        "compute": f"9:{66 * MIB} 7:{2566 * MIB} 8:{4808 * MIB} 10:{100 * MIB}",
        "mps": f"7:{2566 * MIB} 8:{4808 * MIB}",
    }
    standin.say(a_card(0, **lists, samples="9:1000:93"))
    await standin.list_cards()

    busy = await standin.processes()
    standin.say({"0.samples": ""})
    idle = await standin.processes()

    assert busy == [(7, 2566, None), (8, 4808, None), (9, 66, 93.0), (10, 100, 0.0)]
    assert [percent for _, _, percent in idle] == [0.0] * 4


async def test_only_samples_newer_than_the_last_ones_count(standin: Standin) -> None:
    standin.say(a_card(0, compute=f"7:{MIB}", samples="7:1000:10"))
    standin.say(a_card(1, compute=f"8:{MIB}", samples="8:900:20"))
    await standin.list_cards()

    first = [await standin.processes(0), await standin.processes(1)]
    standin.say({"1.samples": "8:900:20 8:1000:30"})
    second = [await standin.processes(1), await standin.processes(0)]

    assert [processes[0][2] for processes in first] == [
        10.0,
        0.0,
    ]  # both cards were read both times
    assert [processes[0][2] for processes in second] == [30.0, 0.0]


async def test_use_is_attributed_although_the_clock_was_set_back_by_an_hour(
    standin: Standin,
) -> None:
    now_us = time.time_ns() // 1000
    before = [f"7:{now_us - 2_000_000}:10", f"7:{now_us - 1_000_000}:20"]
    standin.say(a_card(0, compute=f"7:{MIB}", samples=" ".join(before)))
    await standin.list_cards()
    first = await standin.processes()

    await standin.ask("shift -3600")
    idle = await standin.processes()
    again_us = time.time_ns() // 1000 - 3_600_000_000
    standin.say({"0.samples": " ".join([*before, f"7:{again_us}:30"])})
    second = await standin.processes()
    standin.say({"0.samples": " ".join([*before, f"7:{again_us}:30", f"7:{again_us + 1}:40"])})
    third = await standin.processes()

    assert [processes[0][2] for processes in (first, idle, second, third)] == [
        20.0,
        0.0,
        30.0,
        40.0,
    ]


async def test_zero_samples_with_success_mean_that_nobody_was_busy(standin: Standin) -> None:
    standin.say(a_card(0, compute=f"7:{MIB}", samples="7:1:50", zero_samples=1))
    await standin.list_cards()

    assert await standin.processes() == [(7, 1, 0.0)]


async def test_more_than_all_of_a_card_is_garbage(standin: Standin) -> None:
    standin.say(
        a_card(0, compute=f"7:{2**64 - 4096} 8:{MIB}", samples="7:1000:4294967295 8:1000:100")
    )
    await standin.list_cards()

    assert await standin.processes() == [(7, None, 0.0), (8, 1, 100.0)]


async def test_processes_that_come_between_two_calls_are_read_at_another_try(
    standin: Standin,
) -> None:
    standin.say(
        a_card(0, compute=f"7:{MIB}", samples="7:1000:10"),
        {
            "race.nvmlDeviceGetComputeRunningProcesses_v3": 2,
            "race.nvmlDeviceGetProcessUtilization": 2,
        },
    )
    await standin.list_cards()

    assert await standin.processes() == [(7, 1, 10.0)]


async def test_a_list_that_never_holds_still_is_unknown_and_hides_nothing_else(
    standin: Standin,
) -> None:
    standin.say(
        a_card(0, compute=f"7:{MIB}"), {"race.nvmlDeviceGetComputeRunningProcesses_v3": 1000}
    )
    await standin.list_cards()

    reading = (await standin.read())["samples"][standin.uuid(0)]

    assert not reading["processes_known"]
    assert reading["figures"]["gpu_percent"] == 40


async def test_samples_that_never_hold_still_leave_everybody_idle_for_one_reading(
    standin: Standin,
) -> None:
    race = "race.nvmlDeviceGetProcessUtilization"
    standin.say(a_card(0, compute=f"7:{MIB}", samples="7:1000:10"), {race: 3})
    await standin.list_cards()

    assert [await standin.processes(), await standin.processes()] == [
        [(7, 1, 0.0)],
        [(7, 1, 10.0)],
    ]


async def test_a_driver_that_lists_no_processes_is_not_an_idle_card(standin: Standin) -> None:
    standin.say(a_card(0, compute=None, graphics=None, mps=None))
    await standin.list_cards()

    answer = (await standin.read())["samples"]

    assert [answer[standin.uuid(index)]["processes_known"] for index in (0, 1)] == [False, True]


async def test_samples_that_the_card_does_not_have_are_asked_for_once(standin: Standin) -> None:
    standin.say(
        a_card(0, compute=f"7:{MIB}"),
        {"error.nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED},
    )
    await standin.list_cards()

    assert [await standin.processes() for _ in range(2)] == [[(7, 1, 0.0)]] * 2
    assert await standin.calls("nvmlDeviceGetProcessUtilization") == 1


async def xids(standin: Standin, index: int = 0) -> tuple[float | None, dict[str, int]]:
    reading = (await standin.read())["samples"][standin.uuid(index)]
    return reading["figures"]["xid"], reading["xids"]


async def wait_xid(standin: Standin, wanted: tuple[int, dict[str, int]], index: int = 0) -> None:
    async def observed() -> bool:
        return await xids(standin, index) == wanted

    await until(observed, what=f"card {index} has had {wanted}")


async def test_errors_are_counted_by_code_and_card_and_the_last_one_is_named(
    standin: Standin,
) -> None:
    await standin.list_cards()
    assert await xids(standin) == (0, {})

    standin.say({"events": "0:31 0:79"})
    await wait_xid(standin, (79, {"31": 1, "79": 1}))
    standin.say({"events": "0:31 0:79 1:13 0:31"})
    await wait_xid(standin, (31, {"31": 2, "79": 1}))

    assert await xids(standin, 1) == (13, {"13": 1})
    assert {(event["card"], event["xid"]) for event in standin.logged("xid_error")} == {
        (standin.uuid(0), 31),
        (standin.uuid(0), 79),
        (standin.uuid(1), 13),
    }


async def test_the_error_of_a_card_that_is_lost_with_it_is_its_own_and_others_are_watched_on(
    standin: Standin,
) -> None:
    await standin.list_cards()

    standin.say({"0.error.nvmlDeviceGetUUID": pynvml.NVML_ERROR_GPU_IS_LOST, "events": "0:79 1:31"})

    await wait_xid(standin, (31, {"31": 1}), index=1)
    assert await xids(standin) == (79, {"79": 1})
    assert not standin.logged("xid_watch_ended")


async def test_a_card_without_events_has_no_figure_and_the_other_is_watched(
    standin: Standin,
) -> None:
    standin.say({"0.error.nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NOT_SUPPORTED})
    await standin.list_cards()
    standin.say({"events": "1:48"})

    await wait_xid(standin, (48, {"48": 1}), index=1)
    assert await xids(standin, 0) == (None, {})


async def test_a_watch_that_ends_is_begun_anew_and_forgets_nothing(standin: Standin) -> None:
    await standin.list_cards()
    standin.say({"events": "0:31"})
    await wait_xid(standin, (31, {"31": 1}))

    standin.say({"error.nvmlEventSetWait_v2": pynvml.NVML_ERROR_GPU_IS_LOST, "events": None})

    async def ended() -> bool:
        return bool(standin.logged("xid_watch_ended"))

    await until(ended, what="the watch logs that it has ended")
    standin.say({"error.nvmlEventSetWait_v2": None})
    await standin.list_cards()
    standin.say({"events": "0:79"})

    await wait_xid(standin, (79, {"31": 1, "79": 1}))
    assert await standin.calls("nvmlEventSetCreate") == 2


async def test_listings_of_the_same_cards_keep_one_watch(standin: Standin) -> None:
    for _ in range(3):
        await standin.list_cards()

    assert await standin.calls("nvmlEventSetCreate") == 1


async def test_closing_ends_the_watch_before_the_library(standin: Standin) -> None:
    await standin.list_cards()
    await standin.ask("close")

    async def freed() -> bool:
        return await standin.calls("nvmlEventSetFree") == 1

    # Closing waits a second at most for the thread.
    await until(freed, what="the watch has ended")
    waits = await standin.calls("nvmlEventSetWait_v2")
    assert await standin.calls("nvmlShutdown") == 1
    assert await standin.calls("nvmlEventSetWait_v2") == waits
