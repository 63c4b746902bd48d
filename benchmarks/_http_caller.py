"""A caller that costs next to nothing: HTTP/1.1 over one kept TLS connection, by hand."""

import asyncio
import ssl
from types import TracebackType
from typing import Self

_ANSWER_LIMIT_BYTES = 16 * 1024 * 1024


class Caller:
    """One connection to a server on loopback.

    What a benchmark measures should be the server, so this parses only what it must.
    """

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port = port
        self._trust = trust
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the connection, anew where there was one."""
        await self.close()
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._trust, limit=_ANSWER_LIMIT_BYTES
        )

    async def close(self) -> None:
        """Close the connection if it is open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                return  # the server closed it first

    async def post(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request, head and body; give the status and the body of the answer.

        Raises:
            OSError: the connection broke; an answer that was cut short is one as well.
        """
        if self._reader is None or self._writer is None:
            raise ConnectionError("not connected")
        self._writer.write(request)
        await self._writer.drain()
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server hung up") from error
        return int(head[9:12]), body


def request_bytes(path: str, body: bytes) -> bytes:
    """Write a POST of JSON as kube-apiserver does, as far as a server looks."""
    head = (
        f"POST {path}?timeout=5s HTTP/1.1\r\n"
        "Host: fracgpu-webhook.fracgpu-system.svc:443\r\n"
        "User-Agent: kube-apiserver-admission\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Accept: application/json, */*\r\n"
        "Content-Type: application/json\r\n"
        "\r\n"
    )
    return head.encode() + body
