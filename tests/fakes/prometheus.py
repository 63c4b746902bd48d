"""A server in Prometheus' place, or before a real one, that answers as badly as a test needs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.tcp import a_connection, a_tcp_server

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answering(body: str | bytes | Any, *, status: int = 200) -> Behaviour:
    """Answer every request with *body*, which is JSON unless it is text."""
    raw = body.encode() if isinstance(body, str) else body
    content = raw if isinstance(raw, bytes) else json.dumps(raw).encode()

    async def behave(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\nConnection: close\r\n"
        writer.write(head.encode() + b"\r\n")
        writer.write(content)
        await writer.drain()

    return behave


def vector(*samples: tuple[dict[str, str], str], **extra: Any) -> dict[str, Any]:
    """Return the JSON of an instant vector."""
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **extra}


def knowing(
    series: Callable[[str], Iterable[tuple[dict[str, str], str]]], requests: list[str]
) -> Behaviour:
    """Answer each query, the last of *requests*, with the *series* that it is said to have."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        target = requests[-1].split(" ")[1]
        (query,) = parse_qs(urlsplit(target).query)["query"]
        await answering(vector(*series(query)))(writer)

    return behave


def redirecting(target: str, *, status: int) -> Behaviour:
    """Redirect every request to *target*."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nLocation: {target}\r\nContent-Length: 0\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        await writer.drain()

    return behave


def repeating(requests: list[str], *, status: int) -> Behaviour:
    """Answer with the head of the last of *requests*, as some debugging proxies do."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        await answering(requests[-1].replace("\r\n", " "), status=status)(writer)

    return behave


async def silent(writer: asyncio.StreamWriter) -> None:
    """Accept the request and never answer."""
    await asyncio.sleep(3600)


def kept_back(behaviour: Behaviour, *, asked: asyncio.Event, until: asyncio.Event) -> Behaviour:
    """Signal a request, and answer it once the test says so."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await until.wait()
        await behaviour(writer)

    return behave


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then, so that no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def hanging_up(writer: asyncio.StreamWriter) -> None:
    """Announce more than is sent."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()


@asynccontextmanager
async def serving(
    behave: Behaviour, requests: list[str] | None = None
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve on loopback; yield the base address and the heads of all *requests* so far."""
    requests = [] if requests is None else requests

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await behave(writer)

    async with a_tcp_server(talk) as (host, port):
        yield f"http://{host}:{port}", requests


Fault = Callable[[str, Any], Any]
"""Gets a query and its true answer; returns another answer, or a :data:`Behaviour`."""


class Proxy:
    """Passes queries on to a server, and its answers through :attr:`fault`.

    Attributes:
        fault: what goes wrong; None passes every answer on as it is.
        asked: the PromQL and the ``time`` of each query so far.
    """

    def __init__(self, upstream: str) -> None:
        self.fault: Fault | None = None
        self.asked: list[tuple[str, str | None]] = []
        self._upstream = urlsplit(upstream)
        self._requests: list[str] = []

    @asynccontextmanager
    async def start(self) -> AsyncIterator[str]:
        """Serve on loopback; yield the base address."""
        async with serving(self._pass_on, self._requests) as (url, _):
            yield url

    async def _pass_on(self, writer: asyncio.StreamWriter) -> None:
        target = self._requests[-1].split(" ")[1]
        params = parse_qs(urlsplit(target).query)
        query = params["query"][0]
        self.asked.append((query, params.get("time", [None])[0]))
        status, answer = await self._ask(target)
        found = self.fault(query, answer) if self.fault and status == 200 else answer
        behave = found if callable(found) else answering(found, status=status)
        await behave(writer)

    async def _ask(self, target: str) -> tuple[int, Any]:
        host, port = self._upstream.hostname or "", self._upstream.port or 80
        async with a_connection(host, port) as (reader, writer):
            writer.write(f"GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            return int(head.split(" ")[1]), json.loads(await reader.read())
