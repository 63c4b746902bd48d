"""TCP servers and connections that are fully closed when a test's block ends.

``asyncio.Server.close`` closes no connection, and a task cancelled with its event loop cannot close
one any more: the garbage collector would find the socket during another test.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def a_tcp_server(
    talk: Talk, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Serve each connection with *talk* until the block ends; yield host and port.

    A connection is closed when *talk* returns, and aborted when the block ends before.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        except asyncio.CancelledError:
            return  # the block has ended, and so has this task
        finally:
            # The block may end while a connection that is over is still being closed.
            with suppress(asyncio.CancelledError):
                await _abort(writer)
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, port)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.close()
        while tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await server.wait_closed()


@asynccontextmanager
async def a_connection(
    host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect until the block ends, over TLS if a context is given; OSError if nothing listens."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        yield reader, writer
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    finally:
        await _abort(writer)


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection now, whatever is still to be sent."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
