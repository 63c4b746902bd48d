"""A role is ready, or says why not; both are reported."""

import asyncio

from aiohttp import web

from simulator.demo.supervisor import why_not_ready
from simulator.envtest.ports import free_ports


async def _serve(status: int, text: str) -> tuple[web.AppRunner, str]:
    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"127.0.0.1:{runner.addresses[0][1]}"


async def test_a_ready_role_has_no_excuse() -> None:
    runner, address = await _serve(200, "ok")
    try:
        assert await why_not_ready(address) is None
    finally:
        await runner.cleanup()


async def test_a_role_that_is_not_ready_says_why() -> None:
    runner, address = await _serve(503, "inventory: not listed yet")
    try:
        assert await why_not_ready(address) == "inventory: not listed yet"
    finally:
        await runner.cleanup()


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
