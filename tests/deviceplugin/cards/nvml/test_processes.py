"""Process lists and samples through the real pynvml, with its pitfalls."""

import time

import pynvml

from tests.support.nvml import MIB, Standin, a_card


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
