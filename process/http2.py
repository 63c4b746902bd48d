"""Requests over HTTP/2, all callers' of one connection at once.

Go's client keeps two idle HTTP/1.1 connections to a host, so a caller that has more requests under
way shakes hands anew for most of them; over HTTP/2 it needs one connection. The state of the
protocol is the library's (hyper-h2); here are the sockets, the bounds and an orderly stop.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, cast

import structlog
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from process.telemetry import Answer

log = structlog.get_logger()

ALPN: Final = ("h2", "http/1.1")
"""What a TLS context offers so that callers may choose; those that know neither get HTTP/1.1."""

_STREAMS: Final = 256  # at once on a connection, those included that the caller has given up
_HEADERS_BYTES: Final = 16 * 1024
_STREAM_WINDOW_BYTES: Final = 1 << 20
# Larger than the sum of what may come before it is taken note of; a body has its own bound.
_CONNECTION_WINDOW_BYTES: Final = 1 << 24
_DEFAULT_WINDOW_BYTES: Final = 65_535  # RFC 9113, 6.9.2
_MOST_BODIES: Final = 4  # of the largest size, that one connection may have in memory

_TOO_LARGE: Final = 413
_FAILED: Final = 500


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request; *accept* is the header of that name."""

    method: str
    path: str
    accept: str
    body: bytes


Answerer = Callable[[Request], Awaitable[Answer]]


@dataclass(slots=True)
class _Reading:
    """A request of which not all has come yet."""

    method: str
    path: str
    accept: str
    body: bytearray = field(default_factory=bytearray)


class Http2Connections:
    """The HTTP/2 connections of one server.

    Args:
        answer: answers one request; it is not cancelled if the caller gives up.
        body_limit: bytes of the largest body; a larger one is answered with 413.
    """

    def __init__(self, answer: Answerer, *, body_limit: int) -> None:
        self._answer = answer
        self._body_limit = body_limit
        self._open: set[Http2Connection] = set()
        self._closed = asyncio.Event()

    def or_else(self, http1: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was just accepted.

        It is that of *http1* unless the caller chooses HTTP/2 in its TLS handshake.
        """
        return _ByAlpn(http2=self._new, http1=http1)

    def _new(self) -> "Http2Connection":
        return Http2Connection(self._answer, body_limit=self._body_limit, of=self)

    def opened(self, connection: "Http2Connection") -> None:
        self._open.add(connection)

    def closed(self, connection: "Http2Connection") -> None:
        self._open.discard(connection)
        if not self._open:
            self._closed.set()

    async def stop(self, limit_s: float) -> None:
        """Take no further requests, finish those under way within *limit_s* seconds, then close."""
        for connection in tuple(self._open):
            connection.drain()
        self._closed.clear()
        try:
            async with asyncio.timeout(limit_s):
                while self._open:
                    await self._closed.wait()
        except TimeoutError:
            for connection in tuple(self._open):
                connection.abort()


class Http2Connection(asyncio.Protocol):
    """One connection, over TLS."""

    def __init__(self, answer: Answerer, *, body_limit: int, of: Http2Connections) -> None:
        self._answer = answer
        self._body_limit = body_limit
        self._all = of
        self._transport: asyncio.Transport | None = None
        self._state = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._reading: dict[int, _Reading] = {}
        self._held_bytes = 0  # of bodies that are read or answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[int] = set()  # streams that have no answer yet
        self._unsent: dict[int, memoryview] = {}  # what windows have not let through
        self._paused = self._draining = False

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _set_no_delay(transport)
        state = self._state
        state.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_BYTES,
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
            },
        )
        state.initiate_connection()
        state.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self._all.opened(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._reading.clear()
        self._waiting.clear()
        self._unsent.clear()
        self._all.closed(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._push_all()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._state.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            log.info("http2_connection_ended", reason=str(error) or type(error).__name__)
            self._flush()  # the library has prepared a GOAWAY with the reason
            if self._transport is not None:
                self._transport.close()
            return
        self._flush()

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
        self._close_if_done()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _close_if_done(self) -> None:
        busy = self._reading or self._waiting or self._unsent
        if self._draining and not busy and self._transport is not None:
            self._flush()
            self._transport.close()

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
            self._close_if_done()
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._push_all()

    def _begin(self, event: RequestReceived) -> None:
        stream = event.stream_id
        if self._draining or len(self._reading) + len(self._tasks) >= _STREAMS:
            # The caller may send it again: nothing was done. RFC 9113, 8.7.
            self._state.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
            return
        headers = dict(event.headers)
        self._reading[stream] = _Reading(
            method=_text(headers.get(b":method", b"")),
            path=_text(headers.get(b":path", b"")),
            accept=_text(headers.get(b"accept", b"")),
        )

    def _take_data(self, event: DataReceived) -> None:
        stream = event.stream_id
        if event.flow_controlled_length:
            self._state.acknowledge_received_data(event.flow_controlled_length, stream)
        reading = self._reading.get(stream)
        if reading is None:
            return
        reading.body += event.data
        self._held_bytes += len(event.data)
        limit = self._body_limit
        if len(reading.body) > limit or self._held_bytes > _MOST_BODIES * limit:
            self._forget(stream)
            self._waiting.add(stream)
            self._send(stream, Answer(_TOO_LARGE, f"want at most {limit} bytes\n".encode()))
            with suppress(StreamClosedError):  # if the whole request has come meanwhile
                self._state.reset_stream(stream, ErrorCodes.NO_ERROR)

    def _end(self, stream: int) -> None:
        reading = self._reading.pop(stream, None)
        if reading is None:
            return
        self._waiting.add(stream)
        body = bytes(reading.body)
        request = Request(reading.method, reading.path, reading.accept, body)
        task = asyncio.get_running_loop().create_task(self._respond(stream, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, stream: int, request: Request) -> None:
        try:
            answer = await self._answer(request)
        except Exception:  # one request must not end the connection of the others
            log.exception("request_failed", method=request.method, path=request.path)
            answer = Answer(_FAILED, b"internal error\n")
        finally:
            self._held_bytes -= len(request.body)
        try:
            self._send(stream, answer)
        except ProtocolError:  # the caller has ended the connection
            self._forget(stream)
        self._flush()

    def _forget(self, stream: int) -> None:
        reading = self._reading.pop(stream, None)
        if reading is not None:
            self._held_bytes -= len(reading.body)
        self._waiting.discard(stream)
        self._unsent.pop(stream, None)

    # -- answers -------------------------------------------------------------------------------

    def _send(self, stream: int, answer: Answer) -> None:
        if stream not in self._waiting:  # the caller has given up
            return
        self._waiting.discard(stream)
        headers = [
            (":status", str(answer.status)),
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
        ]
        self._state.send_headers(stream, headers, end_stream=not answer.body)
        if answer.body:
            self._unsent[stream] = memoryview(answer.body)
            self._push(stream)
        self._close_if_done()

    def _push_all(self) -> None:
        for stream in tuple(self._unsent):
            self._push(stream)
        self._close_if_done()

    def _push(self, stream: int) -> None:
        """Send of an answer what the caller's windows let through."""
        state, left = self._state, self._unsent[stream]
        while len(left) and not self._paused:
            most = min(state.local_flow_control_window(stream), state.max_outbound_frame_size)
            if most <= 0:
                break
            part, left = left[:most], left[most:]
            state.send_data(stream, bytes(part), end_stream=not len(left))
        if len(left):
            self._unsent[stream] = left
        else:
            del self._unsent[stream]

    def _flush(self) -> None:
        data = self._state.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)


class _ByAlpn(asyncio.Protocol):
    """Hands a connection over to the protocol that TLS agreed on.

    Args:
        http2: returns the protocol of a connection whose caller chose ``h2``.
        http1: of any other.
    """

    def __init__(
        self,
        *,
        http2: Callable[[], asyncio.Protocol],
        http1: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._http2 = http2
        self._http1 = http1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        chosen = None if tls is None else tls.selected_alpn_protocol()
        protocol = self._http2() if chosen == ALPN[0] else self._http1()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Have answers sent at once, not after the caller's delayed acknowledgement of the last one.

    asyncio does so only for sockets that were made with the number of TCP.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _text(header: bytes) -> str:
    return header.decode("latin-1")
