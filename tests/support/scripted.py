"""HTTP and TCP servers on loopback that do exactly what a test specifies."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.tcp import Talk, a_tcp_server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Heard:
    """One request as received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Answers every request with :attr:`handler` and keeps the requests."""

    handler: Handler
    url: str = ""
    heard: list[Heard] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append(
            Heard(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=dict(request.headers),
                body=await request.read(),
            )
        )
        return await self.handler(request)


@asynccontextmanager
async def serving(
    app: web.Application, *, port: int = 0, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[int]:
    """Serve an application on loopback while the block runs; yield its port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_server(handler: Handler) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(handler)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    async with serving(app) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


def answering(*answers: web.Response | Callable[[], web.Response]) -> Handler:
    """Return a handler that gives the answers in order, and then the last one again."""
    left = list(answers)

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer() if callable(answer) else _copy(answer)

    return handler


def _copy(answer: web.Response) -> web.Response:
    # aiohttp sends a response object only once.
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


def json_answer(body: Any, *, status: int = 200, **headers: str) -> web.Response:
    response = web.json_response(body, status=status)
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return response


def status_answer(status: int, reason: str, message: str, **more: Any) -> web.Response:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, **more}
    return json_answer(body, status=status)


@asynccontextmanager
async def a_raw_server(
    talk: Talk,
) -> AsyncIterator[str]:
    """Serve TCP with *talk* after the request's head was read; yield the URL."""

    async def after_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that disconnects is part of some tests.
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
            await writer.drain()

    async with a_tcp_server(after_the_head) as (host, port):
        yield f"http://{host}:{port}"
