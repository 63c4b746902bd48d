import asyncio
import gzip
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import Counter, Gauge

from process.telemetry import (
    HttpServer,
    Prepared,
    Readiness,
    ReadyGate,
    TelemetryServer,
    add_telemetry_routes,
    new_registry,
)


@asynccontextmanager
async def serving(server: HttpServer) -> AsyncIterator[str]:
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop(1)


@asynccontextmanager
async def telemetry(gate: ReadyGate) -> AsyncIterator[str]:
    registry = new_registry()
    Counter("fracgpu_test_turns_total", "Turns.", registry=registry).inc(3)
    async with serving(TelemetryServer(registry, "127.0.0.1", 0, gate.readiness)) as url:
        yield url


async def get(url: str, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_are_served_as_prometheus_text() -> None:
    async with telemetry(ReadyGate()) as url:
        status, content_type, text = await get(f"{url}/metrics")

    assert status == 200
    assert content_type.startswith("text/plain; version=")
    assert "fracgpu_test_turns_total 3.0" in text
    assert "process_resident_memory_bytes" in text


async def test_metrics_come_as_open_metrics_and_compressed_when_asked_for() -> None:
    def ask(url: str) -> tuple[str, bytes]:
        headers = {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - our own server
            return response.headers["Content-Type"], gzip.decompress(response.read())

    async with telemetry(ReadyGate()) as url:
        content_type, body = await asyncio.to_thread(ask, f"{url}/metrics")

    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_readyz_lists_each_check_with_its_reason() -> None:
    gate = ReadyGate()
    reasons: dict[str, str | None] = {"pods": None, "prometheus": "no answer for 90 s"}
    gate.add("pods", lambda: reasons["pods"])
    gate.add("prometheus", lambda: reasons["prometheus"])
    gate.open()

    async with telemetry(gate) as url:
        silent = await get(f"{url}/readyz")
        reasons["prometheus"] = None
        answering = await get(f"{url}/readyz")

    assert silent[::2] == (
        503,
        "process: ok\npods: ok\nprometheus: no answer for 90 s\nnot ready\n",
    )
    assert answering[::2] == (200, "process: ok\npods: ok\nprometheus: ok\nready\n")


async def test_a_process_is_live_before_it_is_ready_and_not_ready_once_it_stops() -> None:
    gate = ReadyGate()

    async with telemetry(gate) as url:
        assert (await get(f"{url}/livez"))[0] == 200
        assert (await get(f"{url}/readyz"))[2] == "process: still starting\nnot ready\n"
        gate.open()
        assert (await get(f"{url}/readyz"))[0] == 200
        gate.close()
        assert (await get(f"{url}/readyz"))[2] == "process: stopping\nnot ready\n"
        assert (await get(f"{url}/livez"))[0] == 200


async def test_a_process_that_only_a_restart_heals_is_not_live_and_says_why() -> None:
    problem: str | None = None
    server = TelemetryServer(
        new_registry(), "127.0.0.1", 0, ReadyGate().readiness, liveness=lambda: problem
    )
    async with serving(server) as url:
        alive = await get(f"{url}/livez")
        problem = "reading the cards has made no progress for 90 s"
        dead = await get(f"{url}/livez")

    assert (alive[0], alive[2]) == (200, "ok\n")
    assert (dead[0], dead[2]) == (503, f"{problem}\n")


async def test_a_role_with_an_application_of_its_own_mounts_the_same_routes() -> None:
    app = web.Application()
    add_telemetry_routes(app, registry=new_registry(), readiness=Readiness)

    async with serving(HttpServer(app, host="127.0.0.1", port=0)) as url:
        statuses = [(await get(url + path))[0] for path in ("/metrics", "/livez", "/readyz")]

    assert statuses == [200, 200, 200]


class SlowApp:
    """Answers only when told to."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.app = web.Application()
        self.app.router.add_get("/", self._get)

    async def _get(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.answer.wait()
        return web.Response(text="done")


async def test_a_server_that_stops_refuses_new_callers_and_answers_those_it_has() -> None:
    slow = SlowApp()
    server = HttpServer(slow.app, host="127.0.0.1", port=0)
    await server.start()
    url = f"http://127.0.0.1:{server.port}"

    async with asyncio.TaskGroup() as group:
        call = group.create_task(get(url))
        await slow.asked.wait()
        stop = group.create_task(server.stop(10))
        await until_refused(url)
        assert not stop.done()
        slow.answer.set()

    assert call.result()[::2] == (200, "done")


async def test_a_server_that_stops_waits_no_longer_than_it_may() -> None:
    slow = SlowApp()
    server = HttpServer(slow.app, host="127.0.0.1", port=0)
    await server.start()

    async with asyncio.TaskGroup() as group:
        call = group.create_task(outcome(f"http://127.0.0.1:{server.port}"))
        await slow.asked.wait()
        async with asyncio.timeout(20):
            await server.stop(0.1)

    assert isinstance(call.result(), aiohttp.ClientError)


async def test_an_idle_keep_alive_connection_does_not_hold_up_the_stop() -> None:
    app = web.Application()
    add_telemetry_routes(app, registry=new_registry(), readiness=Readiness)
    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()

    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{server.port}/livez") as response:
            await response.read()
        async with asyncio.timeout(20):
            await server.stop(30)


async def test_a_taken_port_is_an_os_error_and_leaves_nothing_behind() -> None:
    first = HttpServer(web.Application(), host="127.0.0.1", port=0)
    async with serving(first):
        second = HttpServer(web.Application(), host="127.0.0.1", port=first.port)
        with pytest.raises(OSError, match=r"address 127.0.0.1, port .*already in use"):
            await second.start()
        await second.stop(1)


async def outcome(url: str) -> object:
    try:
        return await get(url)
    except aiohttp.ClientError as error:
        return error


async def until_refused(url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await get(f"{url}/other")
            except aiohttp.ClientConnectorError:
                return


OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@asynccontextmanager
async def telemetry_with(prepared: Prepared) -> AsyncIterator[str]:
    registry = new_registry()
    Counter("fracgpu_test_turns_total", "Turns.", registry=registry).inc(3)
    server = TelemetryServer(registry, "127.0.0.1", 0, ReadyGate().readiness, prepared=[prepared])
    async with serving(server) as url:
        yield url


async def test_prepared_metrics_are_served_as_they_were_written_while_they_hold() -> None:
    prepared, holds = Prepared(), True
    gauge = Gauge("fracgpu_test_cards", "Cards.", registry=prepared.registry)
    gauge.set(1)
    async with telemetry_with(prepared) as url:
        found = []
        _, _, text = await get(f"{url}/metrics")
        found.append("fracgpu_test_cards 1.0" in text)
        prepared.prepare(lambda: holds)
        gauge.set(2)
        _, _, text = await get(f"{url}/metrics")
        found.append("fracgpu_test_cards 1.0" in text)
        holds = False
        _, _, text = await get(f"{url}/metrics")
        found.append("fracgpu_test_cards 2.0" in text)
        assert "fracgpu_test_turns_total 3.0" in text

    assert found == [True, True, True]


async def test_prepared_metrics_and_the_others_are_one_open_metrics_text() -> None:
    prepared = Prepared()
    Gauge("fracgpu_test_cards", "Cards.", registry=prepared.registry).set(1)
    async with telemetry_with(prepared) as url:
        for _ in range(2):  # the second time in a form that was asked for before
            _, _, text = await get(f"{url}/metrics", Accept=OPEN_METRICS)
            prepared.prepare(lambda: True)

            assert text.count("# EOF") == 1
            assert text.endswith("# EOF\n")
            assert "fracgpu_test_cards 1.0" in text


@pytest.mark.parametrize("accept", ["*/*", OPEN_METRICS])
async def test_what_is_not_prepared_is_never_encoded_in_the_event_loop(accept: str) -> None:
    encoded_in: list[int] = []

    class Noting:
        def collect(self) -> list[Any]:
            encoded_in.append(threading.get_ident())
            return []

    prepared = Prepared()
    prepared.registry.register(Noting())
    encoded_in.clear()
    async with telemetry_with(prepared) as url:
        await get(f"{url}/metrics", Accept=accept)  # the first one ever
        prepared.prepare(lambda: False)
        encoded_in.clear()
        await get(f"{url}/metrics", Accept=accept)  # while new ones are being encoded

    assert encoded_in
    assert threading.get_ident() not in encoded_in


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_strangers_who_keep_connections_open_do_not_keep_a_probe_out() -> None:
    async with telemetry(ReadyGate()) as url:
        port = int(url.rpartition(":")[2])
        before = open_files()
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        try:
            status, _, _ = await get(f"{url}/livez")
            # Both ends are in this process.
            opened = open_files() - before
        finally:
            for _, writer in held:
                writer.close()

    assert status == 200
    assert opened < 200 + 100


def test_a_form_that_was_not_prepared_is_written_once() -> None:
    prepared = Prepared()
    gauge = Gauge("fracgpu_test_cards", "Cards.", registry=prepared.registry)
    prepared.prepare(lambda: True)
    first = prepared.text(OPEN_METRICS)
    gauge.set(2)

    assert prepared.text(OPEN_METRICS) == first
    prepared.prepare(lambda: True)
    assert b"fracgpu_test_cards 2.0" in prepared.text(OPEN_METRICS)


def test_a_stranger_cannot_make_us_prepare_ever_more_forms() -> None:
    prepared = Prepared()
    for escaping in ("allow-utf-8", "underscores", "dots", "values"):
        for form in ("text/plain; version=1.0.0", OPEN_METRICS):
            prepared.text(f"{form}; escaping={escaping}")
    counted: list[str] = []

    class Counting:
        def collect(self) -> list[Any]:
            counted.append("collected")
            return []

    prepared.registry.register(Counting())
    counted.clear()
    prepared.prepare(lambda: True)

    assert len(counted) <= 4
    counted.clear()
    for number in range(100):  # as many agents that scrape, each with a header of its own
        prepared.text(f"text/plain; q=0.{number}")
    assert not counted
