"""A role as ``fracgpu run`` runs it, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from process.clock import Clock, SystemClock
from process.lifecycle import Service, run_until_stopped


@asynccontextmanager
async def running_service(service: Service, *, clock: Clock | None = None) -> AsyncIterator[None]:
    """Run a service, stop it at the end, and assert that it ended well."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        run = group.create_task(run_until_stopped(service, clock or SystemClock(), stop=stop))
        try:
            yield
        finally:
            stop.set()
    assert run.result() == 0
