"""A role is ready, or says why not; both are reported."""

import asyncio

from aiohttp import web

from simulator.demo.supervisor import why_not_ready
from simulator.envtest.ports import free_ports
from tests.support.scripted import a_server, answering


async def asked(answer: web.Response) -> str | None:
    async with a_server(answering(answer)) as server:
        return await why_not_ready(server.url.removeprefix("http://"))


async def test_a_ready_role_has_no_excuse_and_one_that_is_not_ready_says_why() -> None:
    assert await asked(web.Response(text="ok")) is None
    trouble = web.Response(status=503, text="inventory: not listed yet")
    assert await asked(trouble) == "inventory: not listed yet"


async def test_a_role_that_does_not_answer_is_not_ready() -> None:
    (port,) = free_ports(1)

    assert "refused" in (await why_not_ready(f"127.0.0.1:{port}") or "")


async def test_a_role_that_answers_nonsense_is_not_ready() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no HTTP\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        assert (await why_not_ready(f"127.0.0.1:{port}") or "").startswith("BadStatusLine")
