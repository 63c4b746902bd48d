"""Python's garbage collector does not delay requests."""

import asyncio
import gc

from process.memory import settle_memory


async def test_what_was_listed_is_no_longer_walked() -> None:
    kept = [{"n": [number]} for number in range(1_000)]
    before = gc.get_freeze_count()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(settle_memory(), name="settle")
        await asyncio.sleep(0)
        frozen = gc.get_freeze_count()
        still_running = not task.done()
        task.cancel()
    gc.unfreeze()

    assert frozen - before >= len(kept)
    assert still_running
