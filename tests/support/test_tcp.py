"""No socket of a test's server or proxy outlives its block.

The other ends are plain sockets that stay open all the while, as those of other processes do.
"""

import asyncio
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import pytest

from kube.client import KubeClient
from tests.support.scheduler_pods import Proxy
from tests.support.tcp import a_connection, a_tcp_server
from tests.support.waiting import until_true

LOOPBACK = "127.0.0.1"


@dataclass
class Others:
    """A server and callers that never hang up first."""

    server: socket.socket
    stack: ExitStack
    accepted: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def call(self, port: int) -> socket.socket:
        return self.stack.enter_context(socket.create_connection((LOOPBACK, port)))

    async def until_called(self) -> None:
        def called() -> bool:
            try:
                end, _ = self.server.accept()
            except BlockingIOError:
                return False
            self.accepted.append(self.stack.enter_context(end))
            return True

        await until_true(called, what="the server behind is called")


@contextmanager
def others() -> Iterator[Others]:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        server.setblocking(False)
        yield Others(server, stack)


async def a_server_is_called(there: Others) -> None:
    called = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()

    async with a_tcp_server(talk) as (_, port):
        caller = there.call(port)
        await called.wait()
    caller.setblocking(False)  # its end is there already, or the next line raises
    with suppress(ConnectionResetError):
        assert caller.recv(1) == b""


async def a_caller_fails(there: Others) -> None:
    with pytest.raises(LookupError):
        async with a_connection(LOOPBACK, there.port):
            raise LookupError


async def kube_proxy_is_called(there: Others) -> None:
    proxy = Proxy(client=cast("KubeClient", None))  # its addresses are set below
    ends = [{"addresses": [LOOPBACK]}]
    proxy._take([{"ports": [{"port": there.port}], "endpoints": ends}])
    async with proxy.serving() as (_, port):
        there.call(port)
        await there.until_called()


async def nobody_closes(there: Others) -> None:
    await asyncio.open_connection(LOOPBACK, there.port)


def left_open(scenario: Callable[[Others], Awaitable[None]]) -> list[str]:
    """Run *scenario* in its own event loop; return what the garbage collector finds open."""

    async def run(there: Others) -> None:
        await scenario(there)

    gc.collect()
    with others() as there, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(run(there))
        gc.collect()
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize(
    "scenario",
    [a_server_is_called, a_caller_fails, kube_proxy_is_called],
)
def test_nothing_stays_open(scenario: Callable[[Others], Awaitable[None]]) -> None:
    assert left_open(scenario) == []


def test_what_stays_open_is_found() -> None:
    assert any("unclosed" in message for message in left_open(nobody_closes))


async def test_an_answer_arrives_whole_before_its_connection_is_closed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2) * 500_000)

    async with a_tcp_server(answer) as address, a_connection(*address) as (reader, writer):
        writer.write(b"ab")
        assert await reader.read() == b"ab" * 500_000


@pytest.mark.parametrize("turns", range(12))
async def test_the_block_ends_while_a_connection_that_is_over_is_being_closed(turns: int) -> None:
    async with asyncio.timeout(5):
        async with a_tcp_server(_until_the_end) as (host, port):
            _, writer = await asyncio.open_connection(host, port)
            writer.transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
        with suppress(OSError):
            await writer.wait_closed()


async def _until_the_end(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while await reader.read(1):
            pass
