"""Requests over HTTP/2 beside HTTP/1.1 on one port, with real TLS on loopback."""

import asyncio

import aiohttp

from process.http2.request import Http2Limits
from tests.support.http2_caller import Http2Caller
from tests.support.http2_server import JSON, LIMIT, serving
from tests.support.waiting import until_true


async def test_a_caller_that_offers_http2_gets_it_and_another_gets_http1_on_the_same_port() -> None:
    async with serving() as served, served.caller() as caller, aiohttp.ClientSession() as http:
        new = await caller.ask("/echo", b"a body")
        url = f"https://127.0.0.1:{served.port}/echo"
        async with http.post(url, data=b"a body", ssl=served.trust()) as answer:
            old = await answer.text()

    assert (new.status, new.content_type, bytes(new.body)) == (200, JSON, b"over 2: a body")
    assert old == "over 1: a body"
    assert [(asked.method, asked.path) for asked in served.asked] == [("POST", "/echo")]


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


async def test_a_caller_whose_handshake_ends_after_the_stop_began_is_sent_away() -> None:
    async with serving() as served, served.caller() as caller:
        await caller.begin("/wait")
        await until_true(lambda: bool(served.asked), what="the request")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            stopping = group.create_task(served.stop(), name="stop")
            await caller.goodbye.wait()
            trust = served.trust()
            trust.set_alpn_protocols(["h2"])
            await writer.start_tls(trust, server_hostname="127.0.0.1")
            late = Http2Caller(reader, writer)
            await late.follow()  # returns when the server has closed the connection
            assert late.goodbye.is_set()
            assert not stopping.done()
            served.go.set()


async def test_one_connection_more_than_the_limit_replaces_one_that_has_no_request() -> None:
    limits = Http2Limits(connections=2)
    async with serving(limits) as served, served.caller() as busy:
        under_way = await busy.begin("/wait")
        await until_true(lambda: bool(served.asked), what="the request")
        async with served.caller() as idle, served.caller() as new:
            async with asyncio.timeout(20):
                await idle.ended.wait()
            assert (await new.ask("/echo")).status == 200
        served.go.set()
        async with asyncio.timeout(20):
            await busy.answer_to(under_way).done.wait()

    assert idle.goodbye.is_set()
    assert busy.answer_to(under_way).status == 200


async def test_bodies_of_all_connections_together_are_limited() -> None:
    async with serving() as served, served.caller() as one, served.caller() as two:
        for caller in (one, one, two, two):
            await caller.begin("/echo", b"x" * LIMIT, end=False)
        await one.settled()
        await two.settled()
        refused = await two.ask("/echo", b"x")
        one.close()
        await until_true(one.ended.is_set, what="the end of the first connection")
        async with asyncio.timeout(20):
            while (await two.ask("/echo", b"x")).status != 200:
                pass

    assert refused.status == 503
