"""A Service as kube-proxy makes one: its endpoint may change, and open connections stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.tcp import a_connection, a_tcp_server

_CHUNK = 64 * 1024


class StickyService:
    """Passes on what comes; each connection stays with the endpoint that it got first.

    Attributes:
        port: on which it listens.
        endpoint: the port of 127.0.0.1 that new connections get; 0: none, they are closed.
    """

    def __init__(self, *, endpoint: int = 0) -> None:
        self.endpoint = endpoint
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def open(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[str, int]]:
        """Listen until the block ends; yield host and port."""
        async with a_tcp_server(self._serve, host, port) as (_, self.port):
            yield host, self.port

    def cut(self) -> None:
        """Close every connection, so that the next request needs a handshake."""
        for writer in self._open:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with (
                a_connection("127.0.0.1", self.endpoint) as (there, back),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(_copy(reader, back), name="forth")
                group.create_task(_copy(there, writer), name="back")
        except OSError:
            return  # nobody listens there
        finally:
            self._open.discard(writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
