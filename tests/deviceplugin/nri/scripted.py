"""A runtime whose every word on the socket a test chooses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message as Protobuf

from deviceplugin.nri.framing import ConnectionId, FrameReader, Message, MessageType, encode
from deviceplugin.proto import nri_pb2 as wire
from deviceplugin.proto import ttrpc_pb2 as ttrpc

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"


@dataclass(slots=True)
class Wire:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader = field(default_factory=FrameReader)
    arrived: list[Message] = field(default_factory=list)
    stream: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Goes with each request, in a field that the agent does not know."""

    async def read(self) -> Message:
        """Return the plugin's next message."""
        while not self.arrived:
            data = await self.reader.read(1 << 16)
            assert data, "the plugin closed the connection"
            self.arrived += self.frames.feed(data)
        return self.arrived.pop(0)

    def send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        self.writer.write(encode(Message(connection, stream, kind, body)))

    def respond(self, request: Message, response: ttrpc.Response | None = None) -> None:
        """Answer a call of the plugin."""
        body = (response or ttrpc.Response()).SerializeToString()
        self.send(ConnectionId.TO_RUNTIME, request.stream, MessageType.RESPONSE, body)

    async def call(
        self,
        method: str,
        payload: Protobuf | bytes,
        *,
        service: str = PLUGIN,
        timeout_s: float = 0.0,
    ) -> ttrpc.Response:
        """Call the plugin and return its response."""
        stream = self.request(method, payload, service=service, timeout_s=timeout_s)
        message = await self.read()
        expected = (ConnectionId.TO_PLUGIN, stream, MessageType.RESPONSE)
        assert (message.connection, message.stream, message.type) == expected
        return ttrpc.Response.FromString(message.body)

    def request(
        self,
        method: str,
        payload: Protobuf | bytes,
        *,
        service: str = PLUGIN,
        timeout_s: float = 0.0,
    ) -> int:
        """Call the plugin; return the stream on which it will respond."""
        raw = payload if isinstance(payload, bytes) else payload.SerializeToString()
        request = ttrpc.Request(
            service=service, method=method, payload=raw, timeout_nano=int(timeout_s * 1e9)
        )
        stream, self.stream = self.stream, self.stream + 2
        body = request.SerializeToString() + b"".join(
            _field(5, _field(1, name.encode()) + _field(2, value.encode()))
            for name, value in self.metadata.items()
        )
        self.send(ConnectionId.TO_PLUGIN, stream, MessageType.REQUEST, body)
        return stream

    async def register(self) -> ttrpc.Request:
        """Take the plugin's registration, and return it."""
        message = await self.read()
        assert (message.connection, message.type) == (ConnectionId.TO_RUNTIME, MessageType.REQUEST)
        self.respond(message)
        return ttrpc.Request.FromString(message.body)

    async def welcome(self, name: str = "containerd", version: str = "v2.1.9") -> None:
        """Do all that comes before the plugin is asked."""
        await self.register()
        configure = wire.ConfigureRequest(runtime_name=name, runtime_version=version)
        await self.call("Configure", configure)
        await self.call("Synchronize", wire.SynchronizeRequest())


def _field(number: int, value: bytes) -> bytes:
    """Return a short field of bytes as protobuf has it."""
    return bytes([number << 3 | 2, len(value)]) + value


Script = Callable[[Wire], Awaitable[None]]


@asynccontextmanager
async def a_scripted_runtime(socket: Path, script: Script) -> AsyncIterator[asyncio.Future[None]]:
    """Serve *script* to the first connection, then close it; later ones are left alone.

    Yields:
        is done when the script is, with its error if there was one.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    accepted: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        if len(accepted) > 1:
            return
        try:
            await script(Wire(reader, writer))
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            ended.set_exception(error)
        else:
            ended.set_result(None)
        writer.close()

    server = await asyncio.start_unix_server(accept, socket)
    try:
        yield ended
    finally:
        server.close()
        for writer in accepted:
            writer.close()
