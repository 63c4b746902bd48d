"""A small real service for the lifecycle tests: ``python -m tests.process.sample_service MODE``."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from process import logs
from process.clock import SystemClock
from process.lifecycle import EndProcess, Running, Service, run_until_stopped
from process.telemetry import HttpServer, ReadyGate, TelemetryServer, new_registry


def say(what: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **fields}) + "\n")
    sys.stdout.flush()


class DrainingClock(SystemClock):
    """A clock whose only sleep, that before the server stops, ends when a request says so."""

    def __init__(self) -> None:
        self.drained = asyncio.Event()

    async def sleep(self, duration_s: float) -> None:
        await self.drained.wait()


CLOCK: Final = web.AppKey("clock", DrainingClock)
_WHILE_STOPPING_S: Final = 0.2


async def slow(request: web.Request) -> web.Response:
    """Answer a moment after the server has begun to stop."""
    say("asked")
    await request.app[CLOCK].drained.wait()
    await asyncio.sleep(_WHILE_STOPPING_S)
    return web.Response(text="done")


async def last(request: web.Request) -> web.Response:
    """Answer at once, and let the server stop."""
    request.app[CLOCK].drained.set()
    return web.Response(text="done")


async def loop(mode: str) -> None:
    if mode == "crash":
        raise RuntimeError("the loop fell over")
    if mode == "end":
        raise EndProcess("the lease is lost")
    try:
        await asyncio.Event().wait()
    finally:
        say("loop_cancelled")


def build(mode: str, clock: DrainingClock) -> Service:
    gate = ReadyGate()
    telemetry = TelemetryServer(new_registry(), "127.0.0.1", 0, gate.readiness)
    app = web.Application()
    app[CLOCK] = clock
    app.router.add_get("/slow", slow)
    app.router.add_get("/last", last)
    server = HttpServer(app, host="127.0.0.1", port=0)

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        try:
            yield Running(tasks={"loop": lambda: loop(mode), "ports": ports}, servers=[server])
        finally:
            say("clients_closed")

    async def ports() -> None:
        while server.port == 0:  # noqa: ASYNC110 - the child has nothing to be told by
            await asyncio.sleep(0.01)
        say("up", port=server.port, telemetry_port=telemetry.port)
        await asyncio.Event().wait()

    return Service(
        name="sample", open=parts, gate=gate, telemetry=telemetry,
        drain_wait_s=1, drain_timeout_s=60,
    )  # fmt: skip


if __name__ == "__main__":
    logs.configure(json=True)
    waiting = DrainingClock()
    sys.exit(asyncio.run(run_until_stopped(build(sys.argv[1], waiting), waiting)))
