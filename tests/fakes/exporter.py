"""A small exporter with a test's text: what a node agent serves, or what it must not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self


class Exporter:
    """Serves :attr:`text`, or what it returns, on ``/metrics``; another status than 200 refuses."""

    def __init__(self) -> None:
        self.text: str | Callable[[], str] = ""
        self.status = 200
        self.scrapes = 0
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        """Serve on a free loopback port until the block ends."""
        exporter = cls()
        server = await asyncio.start_server(exporter._answer, "127.0.0.1", 0)
        exporter.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield exporter

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.scrapes += 1
            body = (self.text if isinstance(self.text, str) else self.text()).encode()
            head = (
                f"HTTP/1.1 {self.status} X\r\nContent-Type: text/plain; version=0.0.4\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
