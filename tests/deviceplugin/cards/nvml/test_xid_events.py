"""XID errors as the driver reports them, through the real pynvml."""

import pynvml

from tests.support.nvml import Standin
from tests.support.waiting import until


async def xids(standin: Standin, index: int = 0) -> tuple[float | None, dict[str, int]]:
    reading = (await standin.read())["samples"][standin.uuid(index)]
    return reading["figures"]["xid"], reading["xids"]


async def wait_xid(standin: Standin, wanted: tuple[int, dict[str, int]], index: int = 0) -> None:
    async def seen() -> bool:
        return await xids(standin, index) == wanted

    await until(seen, what=f"card {index} has had {wanted}")


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
    assert {(event["card"], event["xid"]) for event in standin.told("xid_error")} == {
        (standin.uuid(0), 31),
        (standin.uuid(0), 79),
        (standin.uuid(1), 13),
    }


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
        return bool(standin.told("xid_watch_ended"))

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

    waits = await standin.calls("nvmlEventSetWait_v2")
    assert await standin.calls("nvmlEventSetFree") == 1
    assert await standin.calls("nvmlShutdown") == 1
    assert await standin.calls("nvmlEventSetWait_v2") == waits
