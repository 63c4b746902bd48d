"""Requests over HTTP/2 beside HTTP/1.1 on one port, with real TLS on loopback."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import aiohttp
from aiohttp import web
from h2.errors import ErrorCodes

from certs.authority import make_ca, make_serving
from process.http2 import ALPN, Http2Connections, Request
from process.telemetry import Answer, HttpServer
from process.tls import ServingTls
from tests.support.http2_caller import Http2Caller
from tests.support.waiting import until_true

NOW = datetime.now(tz=UTC)  # noqa: TID251 - TLS libraries compare with the machine's clock
LIMIT = 100_000
JSON = "application/json"


def a_trusted_pair() -> tuple[ServingTls, Callable[[], ssl.SSLContext]]:
    """Return a server's TLS, and what makes a caller's."""
    ca = make_ca(name="test CA", now=NOW, life=timedelta(hours=1))
    leaf = make_serving(ca, names=("127.0.0.1",), now=NOW, life=timedelta(hours=1))
    tls = ServingTls(alpn=ALPN)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)
    return tls, lambda: ssl.create_default_context(cadata=ca.cert_pem.decode())


@dataclass(slots=True)
class Served:
    """A server, and what it was asked; requests for ``/wait`` wait until *go* is set."""

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
async def serving() -> AsyncIterator[Served]:
    async def over_http1(request: web.Request) -> web.Response:
        return web.Response(body=b"over 1: " + await request.read())

    served = Served()
    tls, served.trust = a_trusted_pair()
    app = web.Application()
    app.router.add_post("/echo", over_http1)
    other = Http2Connections(served.answer, body_limit=LIMIT)
    served.server = HttpServer(app, host="127.0.0.1", port=0, ssl_context=tls.context, other=other)
    await served.server.start()
    served.port = served.server.port
    try:
        yield served
    finally:
        await served.server.stop(1)


async def test_a_caller_that_offers_http2_gets_it_and_another_gets_http1_on_the_same_port() -> None:
    async with serving() as served, served.caller() as caller, aiohttp.ClientSession() as http:
        new = await caller.ask("/echo", b"a body")
        url = f"https://127.0.0.1:{served.port}/echo"
        async with http.post(url, data=b"a body", ssl=served.trust()) as answer:
            old = await answer.text()

    assert (new.status, new.content_type, bytes(new.body)) == (200, JSON, b"over 2: a body")
    assert old == "over 1: a body"
    assert [(asked.method, asked.path) for asked in served.asked] == [("POST", "/echo")]


async def test_a_request_is_answered_while_another_of_the_same_connection_waits() -> None:
    async with serving() as served, served.caller() as caller:
        waiting = await caller.begin("/wait")
        quick = await caller.ask("/echo", b"quick")
        assert not caller.answer_to(waiting).done.is_set()
        served.go.set()
        async with asyncio.timeout(20):
            await caller.answer_to(waiting).done.wait()

    assert bytes(quick.body) == b"over 2: quick"
    assert bytes(caller.answer_to(waiting).body) == b"over 2: "


async def test_a_body_above_the_limit_gets_413_and_the_connection_goes_on() -> None:
    async with serving() as served, served.caller() as caller:
        refused = await caller.ask("/echo", b"x" * (LIMIT + 1))
        largest = await caller.ask("/echo", b"x" * LIMIT)

    assert refused.status == 413
    assert bytes(refused.body) == b"want at most 100000 bytes\n"
    assert largest.status == 200
    assert [len(asked.body) for asked in served.asked] == [LIMIT]


async def test_bodies_that_are_not_ended_do_not_fill_the_memory() -> None:
    async with serving() as served, served.caller() as caller:
        open_ended = [await caller.begin("/echo", b"x" * LIMIT, end=False) for _ in range(4)]
        one_more = await caller.ask("/echo", b"x")
        for stream in open_ended:
            await caller.send(stream, b"")
        async with asyncio.timeout(20):
            await caller.answer_to(open_ended[-1]).done.wait()
        after = await caller.ask("/echo", b"x")

    assert one_more.status == 413
    assert [caller.answer_to(stream).status for stream in open_ended] == [200] * 4
    assert after.status == 200


async def test_an_answer_larger_than_the_callers_window_is_sent_as_the_window_opens() -> None:
    async with serving() as served, served.caller(window=10_000) as caller:
        caller.reads = False
        stream = await caller.begin("/large")
        answer = caller.answer_to(stream)
        await until_true(lambda: len(answer.body) == 10_000, what="the first window")
        quick = await caller.ask("/echo")  # the other is not in its way
        assert not answer.done.is_set()
        caller.reads = True
        caller.state.increment_flow_control_window(10_000, stream)
        caller.state.increment_flow_control_window(300_000)
        await caller.flush()
        async with asyncio.timeout(20):
            await answer.done.wait()

    assert quick.status == 200
    assert bytes(answer.body) == b"x" * 300_000


async def test_a_request_that_the_caller_gives_up_is_carried_out_and_not_answered() -> None:
    async with serving() as served, served.caller() as caller:
        given_up = await caller.begin("/wait")
        await until_true(lambda: bool(served.asked), what="the request")
        caller.state.reset_stream(given_up, ErrorCodes.CANCEL)
        await caller.flush()
        assert (await caller.ask("/echo")).status == 200
        served.go.set()
        await until_true(lambda: served.finished == 2, what="the end of the first request")
        assert (await caller.ask("/echo")).status == 200

    assert caller.answer_to(given_up).status == 0


async def test_a_fault_in_one_request_is_answered_with_500_and_ends_no_other() -> None:
    async with serving() as served, served.caller() as caller:
        failed = await caller.ask("/fail")
        fine = await caller.ask("/echo")

    assert (failed.status, fine.status) == (500, 200)


async def test_requests_beyond_the_limit_are_refused_so_that_the_caller_may_send_them_again() -> (
    None
):
    async with serving() as served, served.caller() as caller:
        for _ in range(256):
            given_up = await caller.begin("/wait")
            caller.state.reset_stream(given_up, ErrorCodes.CANCEL)  # its work goes on
        await caller.flush()
        refused = await caller.ask("/echo")
        served.go.set()
        await until_true(lambda: served.finished == 256, what="the work for all of them")
        again = await caller.ask("/echo")

    assert refused.reset == ErrorCodes.REFUSED_STREAM
    assert again.status == 200
    assert len(served.asked) == 257


async def test_what_is_no_http2_ends_that_connection_alone() -> None:
    async with serving() as served, served.caller() as good, served.caller() as bad:
        await bad.write_raw(bytes(9))  # data of stream 0, which has none
        async with asyncio.timeout(20):
            await bad.ended.wait()
        answer = await good.ask("/echo")

    assert bad.goodbye.is_set()
    assert answer.status == 200


async def test_a_stop_answers_what_is_under_way_and_refuses_what_comes_after() -> None:
    async with serving() as served, served.caller() as caller, served.caller() as idle:
        await idle.ask("/echo")
        under_way = await caller.begin("/wait")
        await until_true(lambda: len(served.asked) == 2, what="the request")
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            stopping = group.create_task(served.stop(), name="stop")
            await idle.ended.wait()
            await caller.goodbye.wait()
            assert not stopping.done()
            served.go.set()
            await caller.answer_to(under_way).done.wait()

    assert bytes(caller.answer_to(under_way).body) == b"over 2: "


async def test_a_stop_waits_no_longer_than_its_limit() -> None:
    async with serving() as served, served.caller() as caller:
        await caller.begin("/wait")
        await until_true(lambda: bool(served.asked), what="the request")
        async with asyncio.timeout(20):
            await served.stop(0.05)
            await caller.ended.wait()

    assert served.finished == 0
