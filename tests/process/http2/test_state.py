"""What the library leaves to us of an HTTP/2 connection's protocol, with real TLS on loopback."""

import asyncio
import socket

from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame, PingFrame

from process.http2.state import set_options
from tests.support.http2_server import serving


class Connected(asyncio.BaseTransport):
    """A transport that has a socket and nothing else."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__({"socket": connection})


async def test_headers_above_the_limit_that_is_announced_end_the_connection() -> None:
    async with serving() as served, served.caller() as caller:
        many = [(f"x-{number}", "y" * 1000) for number in range(17)]
        await caller.begin("/echo", headers=many)
        async with asyncio.timeout(20):
            await caller.ended.wait()

    assert caller.goodbye.is_set()
    assert not served.asked


async def test_a_caller_that_says_goodbye_gets_its_answers_and_then_the_end() -> None:
    async with serving() as served, served.caller() as caller:
        waiting = await caller.begin("/wait")
        goodbye = GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR).serialize()
        await caller.write_raw(goodbye + PingFrame(0, b"12345678").serialize())
        await caller.goodbye.wait()  # the server's, which takes no further requests then
        assert not caller.ended.is_set()
        served.go.set()
        async with asyncio.timeout(20):
            await caller.answer_to(waiting).done.wait()
            await caller.ended.wait()

    assert bytes(caller.answer_to(waiting).body) == b"over 2: "


def test_a_caller_whose_machine_is_gone_is_noticed_within_a_minute() -> None:
    with socket.socket() as connection:
        set_options(Connected(connection))
        idle, pause, probes = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert idle + pause * probes <= 60
