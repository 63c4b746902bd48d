"""One HTTP/2 connection: its requests and its answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import structlog
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from process.http2.request import Answerer, Bodies, Http2Limits, Request
from process.http2.state import STREAMS, new_state, set_options
from process.telemetry import Answer

log = structlog.get_logger()

_TOO_SLOW: Final = 408
_TOO_LARGE: Final = 413
_FAILED: Final = 500
_BUSY: Final = 503
_FAULT: Final = Answer(_FAILED, b"internal error\n")


@dataclass(slots=True)
class _Reading:
    """A request of which not all has come yet; *until* is when it must have."""

    method: str
    path: str
    accept: str
    until: float
    body: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class _Unsent:
    """What the caller's windows have not let through; *until* is when they must let some."""

    left: memoryview
    until: float


class Http2Connection(asyncio.Protocol):
    """One connection, over TLS.

    Args:
        answer: answers one request; what it does later is not cancelled if the caller gives up.
        bodies: of all connections.
        limits: in time.
        opened: called with this connection once it is open.
        closed: called with it once it is closed.
    """

    def __init__(
        self,
        answer: Answerer,
        *,
        bodies: Bodies,
        limits: Http2Limits,
        opened: Callable[["Http2Connection"], None],
        closed: Callable[["Http2Connection"], None],
    ) -> None:
        self._answer = answer
        self._bodies = bodies
        self._limits = limits
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._state = new_state()
        self._reading: dict[int, _Reading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[int] = set()  # streams that have no answer yet
        self._unsent: dict[int, _Unsent] = {}
        self._widened: set[int] = set()  # streams whose window was; 0: the connection's
        self._paused_until: float | None = None  # by when the caller must read, if it does not
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = self._draining = self._ended = False
        self._settles_soon = False

    @property
    def busy(self) -> bool:
        """Whether a request is read, answered or has an answer to be sent."""
        return bool(self._reading or self._waiting or self._unsent)

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        set_options(transport)
        self._flush()
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._ended = True
        for stream in (*self._reading, *self._waiting, *self._unsent):
            self._forget(stream)
        if self._timer is not None:
            self._timer.cancel()
        self._closed(self)

    def pause_writing(self) -> None:
        # Whoever does not read must not send either: much of what it sends has to be answered.
        self._paused_until = self._loop.time() + self._limits.answer_s
        if self._transport is not None:
            self._transport.pause_reading()
        self._set_timer()

    def resume_writing(self) -> None:
        self._paused_until = None
        if self._transport is not None:
            self._transport.resume_reading()
        self._push_all()
        self._settle()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        try:
            events = self._state.receive_data(data)
        except ProtocolError as error:
            kind = type(error).__name__
            log.info("http2_connection_ended", reason=str(error) or kind, error=kind)
            self._close()  # the library has prepared a GOAWAY with the reason
            return
        for event in events:
            self._take(event)
        self._push_widened()
        self._settle()

    # -- stopping ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse further requests, and close once those under way are answered."""
        if self._draining or self._transport is None:
            return
        self._draining = True
        # The library's own way to send this would end the streams that are still answered.
        last = self._state.highest_inbound_stream_id
        frame = GoAwayFrame(0, last_stream_id=last, error_code=int(ErrorCodes.NO_ERROR))
        self._flush()
        self._transport.write(frame.serialize())
        self._settle()

    def abort(self) -> None:
        """Close at once."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def _settle(self) -> None:
        """Send what is prepared; close if nothing more is to come, else watch what is late."""
        if self._leaving and not self._draining:  # not before: all that came has begun by now
            self.drain()
            return
        if self._draining and not self.busy:
            self._close()
            return
        self._flush()
        self._set_timer()

    def _settle_soon(self) -> None:
        """Settle once all that is ready by now has had its turn: what it answers goes together.

        Each write is a TLS record, a call of the system and one more time that the caller wakes.
        """
        if not self._settles_soon:
            self._settles_soon = True
            self._loop.call_soon(self._settle_now)

    def _settle_now(self) -> None:
        self._settles_soon = False
        self._settle()

    def _close(self) -> None:
        self._flush()
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        data = self._state.data_to_send()
        if data and self._transport is not None and not self._ended:
            self._transport.write(data)

    # -- what is late --------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Have what is late ended; one timer, which is left alone when a request ends in time."""
        if self._timer is not None or self._ended:
            return
        limits = [reading.until for reading in self._reading.values()]
        limits += [unsent.until for unsent in self._unsent.values()]
        if self._paused_until is not None:
            limits.append(self._paused_until)
        if limits:
            self._timer = self._loop.call_at(min(limits), self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._paused_until is not None and self._paused_until <= now:
            log.info("http2_connection_ended", reason="the caller does not read")
            self.abort()
            return
        limit_s = self._limits.request_s
        for stream in [stream for stream, read in self._reading.items() if read.until <= now]:
            self._cut(stream, Answer(_TOO_SLOW, f"want all of it in {limit_s:g} s\n".encode()))
        for stream in [stream for stream, rest in self._unsent.items() if rest.until <= now]:
            self._reset(stream, ErrorCodes.CANCEL)
        self._settle()

    # -- requests ------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, StreamEnded):
            self._end(event.stream_id)
        elif isinstance(event, StreamReset):
            self._forget(event.stream_id)
        elif isinstance(event, WindowUpdated):
            self._widened.add(event.stream_id)
        elif isinstance(event, RemoteSettingsChanged):
            self._widened.add(0)
        elif isinstance(event, ConnectionTerminated):
            self.drain()

    def _begin(self, event: RequestReceived) -> None:
        stream = event.stream_id
        if self._draining or len(self._reading) + len(self._tasks) >= STREAMS:
            # The caller may send it again: nothing was done. RFC 9113, 8.7.
            self._reset(stream, ErrorCodes.REFUSED_STREAM)
            return
        headers = dict(event.headers)
        self._reading[stream] = _Reading(
            method=headers.get(b":method", b"").decode("latin-1"),
            path=headers.get(b":path", b"").decode("latin-1").partition("?")[0],
            accept=headers.get(b"accept", b"").decode("latin-1"),
            until=self._loop.time() + self._limits.request_s,
        )

    def _take_data(self, event: DataReceived) -> None:
        stream, bodies = event.stream_id, self._bodies
        if event.flow_controlled_length:
            self._state.acknowledge_received_data(event.flow_controlled_length, stream)
        reading = self._reading.get(stream)
        if reading is None:
            return
        size = len(event.data)
        if len(reading.body) + size > bodies.largest:
            reason = f"want at most {bodies.largest} bytes\n"
            self._cut(stream, Answer(_TOO_LARGE, reason.encode()))
        elif bodies.held + size > bodies.most:
            # This one is not too large, and may be sent again when others are answered.
            reason = f"{bodies.held} bytes of other requests are held\n"
            self._cut(stream, Answer(_BUSY, reason.encode()))
        else:
            reading.body += event.data
            bodies.held += size

    def _end(self, stream: int) -> None:
        reading = self._reading.pop(stream, None)
        if reading is None:
            return
        self._waiting.add(stream)
        request = Request(reading.method, reading.path, reading.accept, bytes(reading.body))
        # Tasks begin in the order in which their requests came: one may depend on one before it.
        task = self._loop.create_task(self._respond(stream, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, stream: int, request: Request) -> None:
        try:
            answer = await self._answer(request)
        except Exception:  # one request must not end the connection of the others
            log.exception("request_failed", method=request.method, path=request.path)
            answer = _FAULT
        finally:
            self._bodies.held -= len(request.body)
        self._send(stream, answer, head=request.method == "HEAD")
        self._settle_soon()

    def _forget(self, stream: int) -> None:
        reading = self._reading.pop(stream, None)
        if reading is not None:
            self._bodies.held -= len(reading.body)
        self._waiting.discard(stream)
        self._unsent.pop(stream, None)

    def _reset(self, stream: int, code: ErrorCodes) -> None:
        self._forget(stream)
        try:
            self._state.reset_stream(stream, code)
        except ProtocolError:  # the caller has ended it already
            return

    # -- answers -------------------------------------------------------------------------------

    def _cut(self, stream: int, answer: Answer) -> None:
        """Answer a request without having read all of it."""
        head = self._reading[stream].method == "HEAD"
        self._forget(stream)
        self._waiting.add(stream)
        self._send(stream, answer, head=head)
        self._reset(stream, ErrorCodes.NO_ERROR)  # RFC 9113, 8.1: the rest need not be sent

    def _send(self, stream: int, answer: Answer, *, head: bool) -> None:
        if stream not in self._waiting:  # the caller has given up
            return
        self._waiting.discard(stream)
        self._leaving = self._leaving or answer.last
        body = b"" if head else answer.body
        headers = [
            (":status", str(answer.status)),
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
        ]
        try:
            self._state.send_headers(stream, headers, end_stream=not body)
        except ProtocolError:  # the caller has ended it, in what is still to be looked at
            return
        if body:
            until = self._loop.time() + self._limits.answer_s
            self._unsent[stream] = _Unsent(memoryview(body), until)
            self._push(stream)

    def _push_widened(self) -> None:
        widened, self._widened = self._widened, set()
        if 0 in widened:
            self._push_all()
            return
        for stream in widened & self._unsent.keys():
            self._push(stream)

    def _push_all(self) -> None:
        for stream in tuple(self._unsent):
            if self._state.outbound_flow_control_window <= 0:
                return
            self._push(stream)

    def _push(self, stream: int) -> None:
        """Send of an answer what the caller's windows let through."""
        state, unsent = self._state, self._unsent[stream]
        left = unsent.left
        try:
            while len(left) and self._paused_until is None:
                most = min(state.local_flow_control_window(stream), state.max_outbound_frame_size)
                if most <= 0:
                    break
                part, left = left[:most], left[most:]
                state.send_data(stream, bytes(part), end_stream=not len(left))
        except ProtocolError:  # the caller has ended it
            self._forget(stream)
            return
        if not len(left):
            del self._unsent[stream]
        elif len(left) < len(unsent.left):
            self._unsent[stream] = _Unsent(left, self._loop.time() + self._limits.answer_s)
