"""Connections have a limit, and the least important ones make room."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from process.connections import ConnectionLimits, Connections, Stage
from process.sockets import ANY_ADDRESS
from tests.support.waiting import until


class Line(asyncio.Protocol):
    """A client connection that reads everything, and knows when it begins and ends."""

    def __init__(self, begun: asyncio.Queue[int], ended: list[int]) -> None:
        self._begun, self._ended = begun, ended
        self._descriptor = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._begun.put_nowait(self._descriptor)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.append(self._descriptor)


class Port:
    """A listening server and its clients' ends."""

    def __init__(self, connections: Connections, address: tuple[str, int]) -> None:
        self.connections = connections
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.ended: list[int] = []
        self._address = address

    async def open(self) -> tuple[asyncio.StreamReader, int]:
        """Connect; return the client's end, and the descriptor of the server's."""
        before = set(self.connections._open)
        reader, writer = await asyncio.open_connection(*self._address)
        self._kept = [*getattr(self, "_kept", []), writer]
        descriptor = await self.begun.get()
        assert descriptor in set(self.connections._open) - before
        return reader, descriptor

    def close(self) -> None:
        for writer in self._kept:
            writer.close()


@asynccontextmanager
async def listening(
    *, most: int, first_request_s: float = 60, idle_s: float = 60
) -> AsyncIterator[Port]:
    limits = ConnectionLimits(most=most, first_request_s=first_request_s, idle_s=idle_s)
    connections = Connections(limits)
    sock = connections.listen("127.0.0.1", 0)
    port = Port(connections, sock.getsockname())
    server = await asyncio.get_running_loop().create_server(
        lambda: Line(port.begun, port.ended), sock=sock
    )
    try:
        yield port
    finally:
        port.close()
        server.close()
        await server.wait_closed()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(60):
        return await reader.read() == b""


async def test_one_more_than_the_limit_takes_the_place_of_the_oldest_that_asked_nothing() -> None:
    async with listening(most=3) as port:
        readers = [(await port.open())[0] for _ in range(3)]

        await port.open()

        assert await is_closed(readers[0])
        assert port.connections.count == 3


@pytest.mark.parametrize(
    ("stages", "goes"),
    [
        ((Stage.JUDGING, Stage.READING, Stage.IDLE, Stage.NEW), 3),
        ((Stage.JUDGING, Stage.READING, Stage.IDLE, Stage.IDLE), 2),
        ((Stage.JUDGING, Stage.READING, Stage.READING, Stage.JUDGING), 1),
    ],
)
async def test_who_is_missed_least_goes_first(stages: tuple[Stage, ...], goes: int) -> None:
    async with listening(most=4) as port:
        readers = []
        for stage in stages:
            reader, descriptor = await port.open()
            port.connections.enter(descriptor, stage)
            readers.append(reader)

        await port.open()

        assert await is_closed(readers[goes])
        assert port.connections.count == 4


async def test_while_all_are_owed_an_answer_a_new_one_is_turned_away() -> None:
    async with listening(most=2) as port:
        for _ in range(2):
            _, descriptor = await port.open()
            port.connections.enter(descriptor, Stage.JUDGING)

        reader, writer = await asyncio.open_connection(*port._address)
        try:
            assert await is_closed(reader)
        except ConnectionError:
            pass  # reset, which is as good
        finally:
            writer.close()

        assert port.connections.count == 2
        assert port.ended == []


async def test_a_connection_that_asks_nothing_ends_by_itself() -> None:
    async with listening(most=9, first_request_s=0.1) as port:
        reader, _ = await port.open()

        assert await is_closed(reader)
        assert port.connections.count == 0


class HandLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers advance only by hand, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    async def advance(self, seconds: float) -> None:
        """Let time pass, and run the timers that are due."""
        self.now_s += seconds
        for _ in range(3):  # those that are due are called in the next turn
            await asyncio.sleep(0)


def by_hand(test: Callable[[HandLoop], Coroutine[Any, Any, None]]) -> None:
    loop = HandLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


def test_an_idle_connection_ends_later_and_one_that_is_judged_never() -> None:
    async def test(loop: HandLoop) -> None:
        async with listening(most=9, first_request_s=5, idle_s=100) as port:
            _, judged = await port.open()
            port.connections.enter(judged, Stage.JUDGING)
            reader, idle = await port.open()
            port.connections.enter(idle, Stage.READING)
            port.connections.enter(idle, Stage.IDLE)

            await loop.advance(99)
            assert port.connections.count == 2
            await loop.advance(1)

            assert await reader.read() == b""
            assert set(port.connections._open) == {judged}

    by_hand(test)


def test_an_idle_connection_outlives_the_time_for_its_first_request() -> None:
    async def test(loop: HandLoop) -> None:
        async with listening(most=9, first_request_s=5, idle_s=100) as port:
            _, asked = await port.open()
            port.connections.enter(asked, Stage.READING)
            port.connections.enter(asked, Stage.IDLE)
            silent, _ = await port.open()

            await loop.advance(5)

            assert await silent.read() == b""
            assert set(port.connections._open) == {asked}

    by_hand(test)


async def test_a_connection_that_its_client_ends_is_forgotten() -> None:
    async with listening(most=9) as port:
        await port.open()
        port.close()

        async def forgotten() -> bool:
            return port.connections.count == 0

        await until(forgotten, what="the connection is forgotten")


def test_a_stranger_is_no_connection_of_ours_and_a_taken_address_is_an_error() -> None:
    connections = Connections(ConnectionLimits(most=2))
    connections.enter(12345, Stage.IDLE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        with pytest.raises(OSError, match="in use"):
            connections.listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_callers_of_both_families_are_counted(address: str) -> None:
    connections = Connections(ConnectionLimits(most=2))
    with (
        connections.listen(ANY_ADDRESS, 0) as listening,
        socket.create_connection((address, listening.getsockname()[1]), timeout=60),
    ):
        listening.settimeout(60)
        accepted, _ = listening.accept()

        assert connections.count == 1
        accepted.close()
