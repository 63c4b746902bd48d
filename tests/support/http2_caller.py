"""A caller over HTTP/2, with the same library at the other end: it decides nothing by itself."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.settings import SettingCodes, Settings

from simulator.background import background


@dataclass(slots=True)
class Answered:
    """What came for one request; *reset* is the error with which the server ended it, if so."""

    status: int = 0
    content_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    reset: ErrorCodes | int | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Http2Caller:
    """One connection to a server.

    Attributes:
        goodbye: set when the server says that it takes no further requests.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.state = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._answers: dict[int, Answered] = {}
        self.goodbye = asyncio.Event()
        self.ended = asyncio.Event()
        self._greeted = asyncio.Event()
        self._answered_ping = asyncio.Event()
        self.reads = True  # False: it acknowledges nothing, so that its window fills

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, port: int, trust: ssl.SSLContext, *, window: int = 65_535
    ) -> AsyncIterator[Self]:
        """Connect to a port of 127.0.0.1; *window* is how much of an answer may come unread."""
        trust.set_alpn_protocols(["h2", "http/1.1"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        tls = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "h2"
        caller = cls(reader, writer)
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: window}
        caller.state.local_settings = Settings(client=True, initial_values=initial)
        caller.state.initiate_connection()
        await caller.flush()
        async with background(caller.follow()):
            try:
                async with asyncio.timeout(20):
                    await caller._greeted.wait()
                yield caller
            finally:
                writer.transport.abort()

    async def ask(self, path: str, body: bytes = b"", *, method: str = "POST") -> Answered:
        """Send a request and return its whole answer."""
        answered = self._answers[await self.begin(path, body, method=method)]
        async with asyncio.timeout(20):
            await answered.done.wait()
        return answered

    async def begin(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        end: bool = True,
        headers: Sequence[tuple[str, str]] = (),
    ) -> int:
        """Send a request, or its beginning; return the number of its stream."""
        stream = self.state.get_next_available_stream_id()
        self.expect(stream)
        head = [(":method", method), (":scheme", "https"), (":authority", "x"), (":path", path)]
        self.state.send_headers(stream, [*head, *headers], end_stream=end and not body)
        if body:
            await self.send(stream, body, end=end)
        await self.flush()
        return stream

    async def send(self, stream: int, body: bytes, *, end: bool = True) -> None:
        """Send more of a request's body, which the server's window must let through."""
        if end and not body:
            self.state.end_stream(stream)
        size = self.state.max_outbound_frame_size
        for at in range(0, len(body), size):
            last = end and at + size >= len(body)
            self.state.send_data(stream, body[at : at + size], end_stream=last)
        await self.flush()

    def expect(self, stream: int) -> None:
        """Keep what comes for a request that is begun on *stream* without :meth:`begin`."""
        self._answers[stream] = Answered()

    def answer_to(self, stream: int) -> Answered:
        """Return what has come for a request so far."""
        return self._answers[stream]

    async def flush(self) -> None:
        """Send what the library has prepared."""
        self._writer.write(self.state.data_to_send())
        await self._writer.drain()

    async def settled(self) -> None:
        """Return once the server has taken all that was sent so far."""
        self._answered_ping.clear()
        self.state.ping(b"settled?")
        await self.flush()
        async with asyncio.timeout(20):
            await self._answered_ping.wait()

    def stop_reading(self) -> None:
        """Leave what the server sends in the socket, from now on."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def write_raw(self, data: bytes) -> None:
        """Send these bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def follow(self) -> None:
        """Take what the server sends, until it closes the connection."""
        with suppress(ConnectionError):  # the server may abort it
            while data := await self._reader.read(65_536):
                for event in self.state.receive_data(data):
                    self._take(event)
                await self.flush()
        self.ended.set()

    def _take(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goodbye.set()
            # The library takes nothing after this, though the answers under way are still to come.
            self.state.state_machine.state = ConnectionState.CLIENT_OPEN
        elif isinstance(event, WindowUpdated):
            self._greeted.set()
        elif isinstance(event, PingAckReceived):
            self._answered_ping.set()
        else:
            self._take_answer(event)

    def _take_answer(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            answered = self._answers[event.stream_id]
            answered.status = int(headers[":status"])
            answered.content_type = headers.get("content-type", "")
        elif isinstance(event, DataReceived):
            self._answers[event.stream_id].body += event.data
            if self.reads:
                length = event.flow_controlled_length
                self.state.acknowledge_received_data(length, event.stream_id)
        elif isinstance(event, StreamReset):
            answered = self._answers[event.stream_id]
            answered.reset = event.error_code
            answered.done.set()
        elif isinstance(event, StreamEnded):
            self._answers[event.stream_id].done.set()
