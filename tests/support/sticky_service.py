"""A Service as kube-proxy makes one: its endpoint may change, and open connections stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.tcp import a_connection, a_tcp_server

_CHUNK = 64 * 1024


class StickyService:
    """Passes on what comes; each connection stays with the endpoint that it got first.

    Attributes:
        port: of 127.0.0.1, on which it listens.
        endpoint: the port of 127.0.0.1 that new connections get.
    """

    def __init__(self, *, endpoint: int) -> None:
        self.endpoint = endpoint
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen until the block ends."""
        async with a_tcp_server(self._serve) as (_, self.port):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            async with (
                a_connection("127.0.0.1", self.endpoint) as (there, back),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(_copy(reader, back), name="forth")
                group.create_task(_copy(there, writer), name="back")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
