"""Loops that run beside a block, in the demo and in tests."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(*loops: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run *loops* while the block runs; one that fails ends the block with an exception group."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
