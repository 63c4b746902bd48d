"""What is answered at once, and what is left to aiohttp."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from process.clock import SystemClock
from process.connections import ConnectionLimits, Connections, Stage
from process.telemetry import FixedRoutes, HttpServer
from process.whole_requests import Whole, WholeRequests

START = "Host: here\r\nUser-Agent: kube-apiserver-admission\r\nContent-Length: 5\r\n"
OTHERS = (
    "Accept: application/json, */*\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
)
SAY = f"POST /say?timeout=5s HTTP/1.1\r\n{START}{OTHERS}\r\nhello"


class Recorder(asyncio.Protocol):
    """Stands for aiohttp's protocol."""

    def __init__(self) -> None:
        self.got = b""
        self.told: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool | None:
        self.told.append("eof")
        return True

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


class Line(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__({"socket": end})
        self.sent = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


class Caller:
    """One connection, and who gets what comes on it."""

    def __init__(self, end: socket.socket) -> None:
        self.connections = Connections(ConnectionLimits(most=10))
        assert self.connections.welcome(end)
        self.descriptor = end.fileno()
        self.asked: list[tuple[str, bytes]] = []
        self.events: list[str] = []
        self.leaves = self.fails = self.notes_fail = False
        requests = WholeRequests(self._answer, connections=self.connections, clock=SystemClock())
        self.aiohttp = Recorder()
        protocol = requests.or_else(lambda: self.aiohttp)
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
        self.line = Line(end)
        protocol.connection_made(self.line)

    def _answer(self, transport: asyncio.Transport, path: str, body: bytes) -> Whole | None:
        if self.leaves:
            return None
        if self.fails:
            raise RuntimeError("wrong")
        assert transport is self.line
        self.asked.append((path, body))
        return Whole(b"said " + body, sent=self._note)

    def _note(self) -> None:
        self.events.append(f"{len(self.line.sent)}")
        if self.notes_fail:
            raise RuntimeError("wrong")

    def comes(self, text: str) -> None:
        self.protocol.data_received(text.encode())

    def aiohttp_answers(self) -> None:
        self.connections.enter(self.descriptor, Stage.IDLE)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
async def caller(ends: tuple[socket.socket, socket.socket]) -> Caller:
    return Caller(ends[0])


async def test_a_whole_request_is_answered_at_once(caller: Caller) -> None:
    for _ in range(2):
        caller.comes(SAY)

    assert caller.asked == [("/say", b"hello")] * 2
    answer = re.compile(
        rb"HTTP/1\.1 200 OK\r\nContent-Type: application/json\r\nDate: \w{3}, \d\d \w{3} \d{4} "
        rb"\d\d:\d\d:\d\d GMT\r\nContent-Length: 10\r\n\r\nsaid hello"
    )
    assert re.fullmatch(rb"(?:%b){2}" % answer.pattern, caller.line.sent)
    assert caller.aiohttp.got == b""


async def test_what_the_caller_need_not_wait_for_comes_after_the_answer(caller: Caller) -> None:
    caller.comes(SAY)

    assert caller.events == [str(len(caller.line.sent))]


async def test_what_fails_after_the_answer_ends_no_connection(caller: Caller) -> None:
    caller.notes_fail = True
    for _ in range(2):
        caller.comes(SAY)

    assert len(caller.asked) == len(caller.events) == 2
    assert not caller.line.closing


@pytest.mark.parametrize(
    "text",
    [
        SAY.replace("POST", "PUT"),
        SAY.replace("HTTP/1.1", "HTTP/1.0"),
        SAY.replace("/say?", "/Say?"),
        SAY.replace("User-Agent", "Expect"),
        SAY.replace("User-Agent", "Connection"),
        SAY.replace("User-Agent", "Transfer-Encoding"),
        SAY.replace("Host: here", "Content-Length: 5"),
        SAY.replace("Host: here", "Host : here"),
        SAY.replace("Host: here\r\n", "Host: here\n"),
        SAY.replace("Host: here", "Host: h\0re"),
        SAY.replace("Host: here", "Host: here\r\n folded"),
        SAY.replace("Content-Length: 5", "Content-Length: +5"),
        SAY.replace("here", "x" * 4096),
        SAY.replace("Host: here\r\n", ""),
        SAY.replace("Host: here\r\n", "Host: here\r\n" * 2),
        SAY.replace("Accept: ", "Accept: x\r\nAccept: " * 17),
        SAY.replace("Content-Length: 5\r\n", ""),
        SAY[:20],
        SAY + SAY,
        SAY + "x",
    ],
)
async def test_all_else_is_left_for_good(caller: Caller, text: str) -> None:
    caller.comes(text)
    caller.aiohttp_answers()
    caller.comes(SAY)

    assert caller.aiohttp.got.decode() == text + SAY
    assert (caller.asked, caller.line.sent) == ([], b"")


async def test_a_head_that_could_be_read_in_many_ways_is_looked_at_once(caller: Caller) -> None:
    """With an optional space before each value, there were 2**30 ways."""
    many = "Accept:  x\r\n" * 15
    text = SAY.replace("Accept: ", f"{many}Accept: ").replace("gzip\r\n", f"gzip\r\n{many}X: 1\r\n")

    caller.comes(text)

    assert caller.asked == []


@pytest.mark.parametrize("cut", range(SAY.index("hello"), len(SAY)))
async def test_a_body_that_comes_in_pieces_is_left_and_the_next_request_is_not(
    caller: Caller, cut: int
) -> None:
    caller.comes(SAY[:cut])
    caller.comes(SAY[cut:])
    caller.aiohttp_answers()
    caller.comes(SAY)

    assert caller.aiohttp.got.decode() == SAY
    assert caller.asked == [("/say", b"hello")]


async def test_who_does_not_wait_for_an_answer_is_left_for_good(caller: Caller) -> None:
    caller.comes(SAY[:-1])
    caller.comes(SAY[-1:])
    caller.comes(SAY)  # before the first is answered
    caller.aiohttp_answers()
    caller.comes(SAY)

    assert caller.aiohttp.got.decode() == SAY * 3


async def test_who_does_not_read_answers_is_left_for_good(caller: Caller) -> None:
    caller.protocol.pause_writing()
    caller.comes(SAY)
    caller.protocol.resume_writing()
    caller.comes(SAY)

    assert caller.aiohttp.got.decode() == SAY * 2
    assert caller.aiohttp.told == ["made", "pause", "resume"]


async def test_nothing_is_answered_on_a_connection_that_closes(caller: Caller) -> None:
    caller.line.closing = True

    caller.comes(SAY)

    assert (caller.aiohttp.got.decode(), caller.asked) == (SAY, [])


async def test_what_cannot_be_answered_at_once_is_left(caller: Caller) -> None:
    caller.leaves = True
    caller.comes(SAY)
    caller.leaves = False
    caller.aiohttp_answers()
    caller.comes(SAY)

    assert caller.aiohttp.got.decode() == SAY
    assert caller.asked == [("/say", b"hello")]


async def test_what_fails_is_logged_and_left(caller: Caller) -> None:
    caller.fails = True

    with structlog.testing.capture_logs() as lines:
        caller.comes(SAY)

    assert caller.aiohttp.got.decode() == SAY
    assert [(line["event"], line["path"]) for line in lines] == [("not_answered_at_once", "/say")]


@given(
    st.lists(st.sampled_from((SAY, SAY.replace("Host", "Expect"), "GET / HTTP/1.1\r\n\r\n"))),
    st.lists(st.tuples(st.integers(1, 400), st.booleans())),
)
def test_nothing_is_lost_doubled_or_overtaken(
    texts: list[str], cuts: list[tuple[int, bool]]
) -> None:
    """Whatever the pieces, and whenever aiohttp answers: each byte has one reader."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            caller = Caller(ours)
            text = left = "".join(texts)
            for size, answers in [*cuts, (len(text), False)]:
                piece, left = left[:size], left[size:]
                under_way = caller.connections.is_idle(caller.descriptor) is False
                before = len(caller.asked)
                if piece:
                    caller.comes(piece)
                assert not (under_way and len(caller.asked) > before)
                if answers:
                    caller.aiohttp_answers()
            taken = len(caller.asked) * len(SAY)
            assert len(caller.aiohttp.got) + taken == len(text)
            rest = text
            for _ in caller.asked:
                rest = rest.replace(SAY, "", 1)
            assert sorted(caller.aiohttp.got.decode()) == sorted(rest)

    asyncio.run(run())


async def test_the_end_of_a_connection_is_passed_on(caller: Caller) -> None:
    assert caller.protocol.eof_received() is True
    caller.protocol.connection_lost(None)

    assert caller.aiohttp.told == ["made", "eof", "lost"]


# -- over a real server ----------------------------------------------------------------------------


async def said(request: web.BaseRequest) -> web.Response:
    body = await request.read()
    if body == b"wrong":
        raise RuntimeError("wrong")
    return web.Response(body=b"said " + body, content_type="application/json")


def at_once(transport: asyncio.Transport, path: str, body: bytes) -> Whole | None:
    if path != "/say":
        return None
    if body == b"wrong":
        raise RuntimeError("wrong")
    return Whole(b"said " + body, sent=lambda: None)


async def around(connections: Connections, request: web.BaseRequest, answering: Any) -> Any:
    descriptor = request.transport.get_extra_info("socket").fileno()  # type: ignore[union-attr]
    try:
        return await answering(request)
    finally:
        connections.enter(descriptor, Stage.IDLE)


@asynccontextmanager
async def a_server(*, whole: bool, idle_s: float = 100) -> AsyncIterator[int]:
    connections = Connections(ConnectionLimits(most=10, idle_s=idle_s))
    routes = FixedRoutes(
        routes={"/say": {"POST": said}}, around=partial(around, connections), client_max_size=4096
    )
    other = WholeRequests(at_once, connections=connections, clock=SystemClock())
    server = HttpServer(
        routes, host="127.0.0.1", port=0, connections=connections, other=other if whole else None
    )
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop(1)


async def told(port: int, *pieces: str) -> bytes:
    """Send pieces; return all answers without what differs between any two servers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        for piece in pieces:
            writer.write(piece.encode())
            await writer.drain()
        answer = await reader.read()
    writer.close()
    return re.sub(rb"(Date|Server): .*\r\n", b"", answer)


LAST = SAY.replace("Host: here", "Host: here\r\nConnection: close")


@pytest.mark.parametrize(
    "pieces",
    [
        (SAY, LAST),
        (SAY + SAY, LAST),
        (SAY[:30], SAY[30:], SAY, LAST),
        (SAY[:-2], SAY[-2:], SAY, LAST),
        (SAY.replace("/say", "/other"), LAST),
        (SAY.replace("hello", "wrong"),),
        (SAY.replace("Content-Length: 5", "Content-Length: 0").removesuffix("hello"), LAST),
        (SAY.replace("Host: here", "Expect: 100-continue"), LAST),
        (SAY.replace("POST", "GET"), LAST),
        ("nonsense\r\n\r\n",),
        *(
            (SAY.replace(f"{name}: ", f"{name}: x\r\n{name}: "), *more)
            for name, *more in (
                ("User-Agent",),
                ("Content-Type",),
                ("Accept", LAST),
                ("Accept-Encoding", LAST),
            )
        ),
        *(
            (SAY.replace("Accept: ", f"{name}: x\r\n{name}: y\r\nAccept: "), LAST)
            for name in ("Authorization", "Traceparent", "Tracestate")
        ),
        *((SAY.replace("Host: here", host), LAST) for host in ("Host:", "Host: a b/c")),
    ],
)
async def test_a_caller_gets_what_it_gets_of_aiohttp_alone(pieces: tuple[str, ...]) -> None:
    async with a_server(whole=False) as alone, a_server(whole=True) as both:
        expected, answer = await told(alone, *pieces), await told(both, *pieces)

    by_lines = [sorted(each.split(b"\r\n")) for each in (expected, answer)]
    assert by_lines[0] == by_lines[1]
    assert expected.startswith(b"HTTP/1.")


async def test_a_connection_that_was_answered_is_closed_by_an_orderly_stop() -> None:
    async with a_server(whole=True) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SAY.encode())
        async with asyncio.timeout(20):
            await reader.readuntil(b"hello")

    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_aiohttp_closes_no_connection_for_being_idle_whose_requests_it_never_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead_s)
    async with a_server(whole=True, idle_s=1e6) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(SAY.encode())
            async with asyncio.timeout(20):
                await reader.readuntil(b"hello")
            ahead_s += 24 * 3600
            await asyncio.sleep(0)  # timers that are due by now
            await asyncio.sleep(0)
    writer.close()
