"""Which clients may call the webhook, and what unknown ones can consume, over real TLS."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from benchmarks.fixtures.http_caller import Caller, request_bytes
from benchmarks.fixtures.live_process import LiveProcess
from benchmarks.fixtures.live_webhook import simulated_webhook
from benchmarks.fixtures.reviews import a_review
from certs.authority import make_client
from process.connections import ConnectionLimits, Connections
from process.telemetry import HttpServer
from tests.certs.tls_harness import HOUR, a_ca, now, trusting
from tests.webhook.harness import Harness, a_webhook
from webhook.server import RequestGate

BODY = json.dumps(a_review()).encode()
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(live: LiveProcess, count: int, *, sends: bytes = b"") -> Sequence[Ends]:
    """Return TLS connections that send *sends* and then nothing more."""
    limited = asyncio.Semaphore(20)

    async def one() -> Ends | None:
        async with limited:
            try:
                ends = await asyncio.open_connection("127.0.0.1", live.port, ssl=live.trust)
                if sends:
                    ends[1].write(sends)
                    await ends[1].drain()
            except OSError:
                return None  # refused, or closed for the next one
            return ends

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one()) for _ in range(count)]
    return [task.result() for task in tasks if task.result() is not None]  # type: ignore[misc]  # filtered


async def honest(live: LiveProcess) -> None:
    async with Caller(live.port, live.trust) as caller:
        async with asyncio.timeout(20):
            status, answer = await caller.post(request_bytes("/mutate", BODY))
    assert status == 200
    assert json.loads(answer)["response"]["allowed"] is True


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_idle_connections_and_half_sent_bodies_cost_little_and_hold_up_nobody(
    tmp_path: Path,
) -> None:
    """Unbounded, 200 half-sent bodies took 1.2 GB and 1,200 idle connections 422 MB of 512 MiB."""
    large = b"x" * (2 * 1024 * 1024)
    half = request_bytes("/mutate", b"x" * (3 * 1024 * 1024 - 1))[: len(large)]
    most = [0.0]
    async with simulated_webhook(tmp_path) as live, AsyncExitStack() as stack:
        await honest(live)
        attacks = ((b"", 600), (half, 200), (half[:100_000], 200), (b"POST /", 200), (half, 200))
        for sends, count in attacks:
            for _, writer in await opened(live, count, sends=sends):
                stack.callback(writer.close)
            await honest(live)
            most.append(live.rss_mib)
            assert open_files(live.process.pid) < 300  # 200 connections at once

        assert max(most) < 450, most
        await honest(live)


async def test_a_body_that_does_not_come_gets_408_and_its_connection_ends() -> None:
    async with a_webhook(body_timeout_s=0.2) as server:
        host, port = server.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=trusting(server.ca.cert_pem)
        )
        writer.write(request_bytes("/mutate", BODY)[:-1])
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert server.counted("too_slow") == 1


@pytest.mark.parametrize("turns", range(4))
async def test_who_comes_as_another_hangs_up_may_wait_no_longer_for_that(turns: int) -> None:
    """A client that resets its half-sent request frees the number of its socket for the next."""
    limits = ConnectionLimits(most=5, first_request_s=0.3, idle_s=600)
    connections = Connections(limits)
    gate = RequestGate(connections)
    begun = asyncio.Event()

    async def mutate(request: web.Request) -> web.Response:
        begun.set()
        body = await gate.read(request)
        raise AssertionError(f"{len(body)} bytes came of a body that was not sent")

    app = web.Application(client_max_size=1000)
    app.router.add_post("/mutate", gate.guarded(mutate))
    server = HttpServer(app, host="127.0.0.1", port=0, connections=connections)
    await server.start()
    try:
        half = socket.create_connection(("127.0.0.1", server.port))
        half.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf")
        async with asyncio.timeout(20):
            await begun.wait()
        half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        half.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            async with asyncio.timeout(20):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        finally:
            writer.close()
    finally:
        await server.stop(0.1)


async def test_only_the_limit_on_idle_connections_ends_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead_s)
    async with (
        a_webhook(limits=ConnectionLimits(most=5, idle_s=1e6)) as server,
        Caller(int(server.url.rpartition(":")[2]), trusting(server.ca.cert_pem)) as caller,
    ):
        for _ in range(2):
            async with asyncio.timeout(20):
                assert (await caller.post(request_bytes("/mutate", BODY)))[0] == 200
            ahead_s += 24 * 3600
            await asyncio.sleep(0)  # timers that are due by now


async def asked_as(server: Harness, client: str | None, ca_name: str = "ours") -> int | str:
    """Return the status with a client certificate, or how the connection was refused."""
    authority = CLIENTS if ca_name == "ours" else a_ca()
    pair = None if client is None else make_client(authority, name=client, now=now(), life=HOUR)
    connector = aiohttp.TCPConnector(
        force_close=True, ssl=trusting(server.ca.cert_pem, client=pair)
    )
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"{server.url}/mutate", data=BODY) as response,
        ):
            return response.status
    except (aiohttp.ClientError, ssl.SSLError, OSError):
        return "refused"


CLIENTS = a_ca()


async def test_the_webhook_asks_for_a_client_certificate_where_it_is_told_whose(
    tmp_path: Path,
) -> None:
    file = tmp_path / "clients.crt"
    file.write_bytes(CLIENTS.cert_pem)
    names = ("kube-apiserver-kubelet-client",)
    async with a_webhook(client_ca_file=str(file), client_names=names) as server:
        assert await asked_as(server, names[0]) == 200
        assert await asked_as(server, "system:node:n1") == 403
        assert await asked_as(server, None) == "refused"
        assert await asked_as(server, names[0], "another") == "refused"


async def test_any_certificate_of_the_authority_will_do_where_no_name_is_said(
    tmp_path: Path,
) -> None:
    file = tmp_path / "clients.crt"
    file.write_bytes(CLIENTS.cert_pem)
    async with a_webhook(client_ca_file=str(file)) as server:
        assert await asked_as(server, "whoever") == 200
        assert await asked_as(server, None) == "refused"


async def test_without_an_authority_nobody_is_asked_for_a_certificate() -> None:
    async with a_webhook() as server:
        assert await asked_as(server, None) == 200
