"""Requests that come in one piece, answered in the turn of the event loop that they come in.

aiohttp makes a task, a request and a response for each, over three turns of the loop: about half of
what a short request costs. A caller that sends just what is expected needs none of it.
"""

import asyncio
import math
import re
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, NamedTuple, cast

import structlog

from process.clock import Clock
from process.connections import Connections, Stage

log = structlog.get_logger()

# Headers that change neither how a request is read nor how it is answered here, in the order in
# which Go writes them. Traceparent and Tracestate are of W3C Trace Context, the others of RFC 9110.
# Of those outside _OTHERS aiohttp takes none twice. Nothing is tried in two ways: all quantifiers
# are possessive.
_VALUE: Final = rb":[\t -~]{0,4096}+\r\n"
_OTHERS: Final = (
    rb"(?:(?i:Accept|Accept-Encoding|Authorization|Traceparent|Tracestate)" + _VALUE + rb"){0,16}+"
)
_HEAD: Final = re.compile(
    rb"POST (/[a-z]{1,32}+)(?:\?[\w=&.%-]{0,256}+)?+ HTTP/1\.1\r\n"
    + (rb"(?i:Host)" + _VALUE)
    + (rb"(?:(?i:User-Agent)" + _VALUE + rb")?+")
    + rb"(?i:Content-Length): ?+([0-9]{1,7}+)\r\n"
    + _OTHERS
    + (rb"(?:(?i:Content-Type)" + _VALUE + rb")?+")
    + _OTHERS
    + rb"\r\n"
)


class Whole(NamedTuple):
    """The answer to a request: JSON with status 200.

    Attributes:
        body: what the caller gets.
        sent: called once it has been sent, for what the caller need not wait for.
    """

    body: bytes
    sent: Callable[[], None]


AnswerWhole = Callable[[asyncio.Transport, str, bytes], Whole | None]
"""Returns the answer to a POST on a path with a body at once; None to leave it to aiohttp."""


class WholeRequests:
    """A ``process.telemetry.OtherProtocol`` that stands in front of aiohttp's.

    It answers a request itself only if all of it came at once, with no header that could change its
    meaning, while the connection is idle. All else is aiohttp's: other methods and headers, bodies
    that come in pieces, and what *answer* leaves to it. A connection whose caller sends anything
    unexpected, or two requests in one piece, or does not read its answers, stays aiohttp's for
    good.

    Args:
        answer: answers what it can at once; if it raises, aiohttp's way gets the request.
        connections: the server's; only their idle connections are answered.
        clock: dates the answers.
    """

    def __init__(self, answer: AnswerWhole, *, connections: Connections, clock: Clock) -> None:
        self._answer = answer
        self._connections = connections
        self._clock = clock
        self._dated = (-1, b"")

    def or_else(self, http1: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was just accepted."""
        return _Connection(self, cast("asyncio.Protocol", http1()), self._connections)

    async def stop(self, limit_s: float) -> None:
        """Do nothing: no request is under way between two turns of the event loop."""

    def answer_to(self, transport: asyncio.Transport, path: str, body: bytes) -> Whole | None:
        """Return the answer, or None to leave the request to aiohttp."""
        try:
            return self._answer(transport, path, body)
        except Exception:  # aiohttp's way raises it again, and answers with 500
            log.warning("not_answered_at_once", path=path, exc_info=True)
            return None

    def note(self, whole: Whole) -> None:
        """Do what the caller need not wait for; it has its answer, so an error is only logged."""
        try:
            whole.sent()
        except Exception:
            log.exception("answer_not_noted")

    def head(self, length: int) -> bytes:
        """Return the head of an answer of *length* bytes."""
        second = int(asyncio.get_running_loop().time())
        if self._dated[0] != second:
            date = formatdate(self._clock.now().timestamp(), usegmt=True)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: {date}\r\n"
            self._dated = (second, f"{head}Content-Length: ".encode())
        return b"%b%d\r\n\r\n" % (self._dated[1], length)


class _Connection(asyncio.Protocol):
    """One connection: passes everything on to *http1* but the requests that it answers itself."""

    def __init__(
        self, requests: WholeRequests, http1: asyncio.Protocol, connections: Connections
    ) -> None:
        self._requests = requests
        self._http1 = http1
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        # Bytes that aiohttp has yet to get of a request that it has begun; infinitely many once the
        # connection is left to it for good.
        self._owed: float = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._http1.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._owed = None, math.inf
        self._http1.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._http1.eof_received()

    def pause_writing(self) -> None:
        self._paused = True
        self._http1.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._http1.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._owed:
            owed = self._owed - len(data)
            self._owed = owed if owed >= 0 else math.inf  # more is of the next request
        elif self._answered(data):
            return
        self._http1.data_received(data)

    def _answered(self, data: bytes) -> bool:
        """Answer *data* if it is a whole request; else note what aiohttp gets of it later."""
        transport, head = self._transport, _HEAD.match(data)
        idle = self._connections.is_idle(self._descriptor)
        if transport is None or head is None or not idle or self._paused or transport.is_closing():
            self._owed = math.inf
            return False
        owed = head.end() + int(head[2]) - len(data)
        if owed == 0:
            whole = self._requests.answer_to(transport, head[1].decode(), data[head.end() :])
            if whole is not None:
                transport.write(self._requests.head(len(whole.body)) + whole.body)
                self._connections.enter(self._descriptor, Stage.IDLE, abort=transport.abort)
                self._requests.note(whole)
                return True
        self._owed = owed if owed >= 0 else math.inf
        self._connections.enter(self._descriptor, Stage.READING, abort=transport.abort)
        return False
