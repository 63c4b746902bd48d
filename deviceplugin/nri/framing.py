"""Frames of NRI: messages of ttrpc, on two connections that share one unix socket."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MAX_MESSAGE: Final = 4 << 20
"""The longest body of a message in bytes, which is ttrpc's own limit."""
# Connection id and length; then what ttrpc writes: length, stream, type and flags.
_TRUNK: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_MAX_FRAME: Final = _HEADER.size + MAX_MESSAGE
# A runtime reads a header through a buffer of this size and drops the connection if a frame
# does not fit in; what follows it reads into a buffer as large as the message.
_FIRST_FRAME: Final = 4096


class FrameError(Exception):
    """The bytes are not NRI's; nothing after them can be understood."""


class ConnectionId(IntEnum):
    """Who calls on a connection."""

    TO_PLUGIN = 1
    TO_RUNTIME = 2


class MessageType(IntEnum):
    """What a message is; ttrpc's other types belong to streams, which NRI does not use."""

    REQUEST = 1
    RESPONSE = 2


@dataclass(frozen=True, slots=True)
class Message:
    """One message of ttrpc; *type* may be one that ``MessageType`` does not have."""

    connection: int
    stream: int
    type: int
    body: bytes


class FrameReader:
    """Puts messages together from bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._connections = {int(connection): bytearray() for connection in ConnectionId}

    @property
    def in_message(self) -> bool:
        """Whether part of a message has arrived and the rest is missing."""
        return bool(self._trunk) or any(self._connections.values())

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that *data* completes; on connections that we do not know, none.

        Raises:
            FrameError: a frame or a message is longer than the protocol allows.
        """
        self._trunk += data
        while len(self._trunk) >= _TRUNK.size:
            connection, length = _TRUNK.unpack_from(self._trunk)
            if length > _MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes; at most {_MAX_FRAME} are allowed")
            end = _TRUNK.size + length
            if len(self._trunk) < end:
                return
            payload = bytes(self._trunk[_TRUNK.size : end])
            del self._trunk[:end]
            if connection in self._connections:
                self._connections[connection] += payload
                yield from self._messages(connection)

    def _messages(self, connection: int) -> Iterator[Message]:
        buffer = self._connections[connection]
        while len(buffer) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(buffer)
            if length > MAX_MESSAGE:
                raise FrameError(f"a message of {length} bytes; at most {MAX_MESSAGE} are allowed")
            end = _HEADER.size + length
            if len(buffer) < end:
                return
            body = bytes(buffer[_HEADER.size : end])
            del buffer[:end]
            yield Message(connection, stream, kind, body)


def encode(message: Message) -> bytes:
    """Return the bytes of *message* on the socket.

    Raises:
        ValueError: its body is longer than ``MAX_MESSAGE``.
    """
    if len(message.body) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(message.body)} bytes; at most {MAX_MESSAGE} go out")
    body = _HEADER.pack(len(message.body), message.stream, message.type, 0) + message.body
    parts = [part for part in (body[:_FIRST_FRAME], body[_FIRST_FRAME:]) if part]
    return b"".join(_TRUNK.pack(message.connection, len(part)) + part for part in parts)
