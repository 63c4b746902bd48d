"""A server of HTTP/2 beside HTTP/1.1 on one port, with real TLS on loopback."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from process.http2.connections import ALPN, Http2Connections
from process.http2.request import Http2Limits, Request
from process.telemetry import Answer, HttpServer
from process.tls import ServingTls
from tests.certs.tls_harness import a_ca, a_leaf
from tests.support.http2_caller import Http2Caller

LIMIT = 100_000
DEFAULTS = Http2Limits()
JSON = "application/json"


def a_trusted_pair() -> tuple[ServingTls, Callable[[], ssl.SSLContext]]:
    """Return a server's TLS, and what makes a caller's."""
    ca = a_ca()
    leaf = a_leaf(ca)
    tls = ServingTls(alpn=ALPN)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)
    return tls, lambda: ssl.create_default_context(cadata=ca.cert_pem.decode())


@dataclass(slots=True)
class Served:
    """A server, and what it was asked.

    Requests for ``/wait`` wait until *go* is set.
    """

    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Request] = field(default_factory=list)
    finished: int = 0
    port: int = 0
    trust: Callable[[], ssl.SSLContext] = ssl.create_default_context
    server: HttpServer | None = None

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        if request.path == "/fail":
            raise RuntimeError("a fault of the role")
        if request.path == "/wait":
            await self.go.wait()
        self.finished += 1
        if request.path == "/large":
            return Answer(200, b"x" * 300_000)
        return Answer(200, b"over 2: " + request.body, JSON)

    def caller(self, *, window: int = 65_535) -> AbstractAsyncContextManager[Http2Caller]:
        return Http2Caller.connect(self.port, self.trust(), window=window)

    async def stop(self, limit_s: float = 20) -> None:
        assert self.server is not None
        await self.server.stop(limit_s)


@asynccontextmanager
async def serving(limits: Http2Limits = DEFAULTS) -> AsyncIterator[Served]:
    async def over_http1(request: web.Request) -> web.Response:
        return web.Response(body=b"over 1: " + await request.read())

    served = Served()
    tls, served.trust = a_trusted_pair()
    app = web.Application()
    app.router.add_post("/echo", over_http1)
    other = Http2Connections(served.answer, body_limit=LIMIT, limits=limits)
    served.server = HttpServer(app, host="127.0.0.1", port=0, ssl_context=tls.context, other=other)
    await served.server.start()
    served.port = served.server.port
    try:
        yield served
    finally:
        await served.server.stop(1)
