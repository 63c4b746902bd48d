"""gRPC on unix sockets in folders that others clean up: served again where a socket is gone."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import grpc

# sockaddr_un.sun_path holds 108 bytes with the terminating zero; see unix(7).
_MAX_PATH_BYTES: Final = 107


class SocketError(Exception):
    """A unix socket cannot be served."""


class SocketServer:
    """Serves gRPC on one or more unix sockets.

    Args:
        paths: of the sockets, in the order in which they are created.
        register: adds the services to a new gRPC server.
        options: of the gRPC server.
    """

    def __init__(
        self,
        *paths: Path,
        register: Callable[[grpc.aio.Server], None],
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._paths = paths
        self._register = register
        self._options = options
        self._server: grpc.aio.Server | None = None
        self._identities: Sequence[tuple[int, int] | None] = ()
        self._closed = False
        self._lock = asyncio.Lock()

    @property
    def intact(self) -> bool:
        """Whether we serve, and all socket files are still those that we created."""
        return self._server is not None and self._found() == self._identities

    async def start(self) -> bool:
        """Serve, unless the server is intact or closed; return whether that was necessary.

        Raises:
            SocketError: a path is too long, or a socket cannot be created.
        """
        async with self._lock:
            if self._closed or self.intact:
                return False
            await self._serve()
            return True

    async def close(self) -> None:
        """Serve no more once the present server ends."""
        async with self._lock:
            self._closed = True

    async def stop(self, limit_s: float) -> None:
        """Accept no more calls, and wait up to *limit_s* seconds for those in flight."""
        await self.close()
        await self._end(limit_s)

    def _found(self) -> Sequence[tuple[int, int] | None]:
        return [socket_identity(path) for path in self._paths]

    async def _serve(self) -> None:
        # The old server removes its paths when it stops, so it must stop before the new one starts.
        await self._end(0)
        for path in self._paths:
            check_socket_path(path)
        server = grpc.aio.server(options=list(self._options))
        self._register(server)
        try:
            for path in self._paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                server.add_insecure_port(f"unix:{path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise SocketError(f"cannot serve {self._paths[-1]}: {error}") from error
        self._server = server
        self._identities = self._found()

    async def _end(self, limit_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(limit_s or None)


def socket_identity(path: Path) -> tuple[int, int] | None:
    """Return which file is at *path*: it differs once the file was re-created; None if absent."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns)


def check_socket_path(path: Path) -> None:
    """Raise if *path* is too long for a unix socket.

    Raises:
        SocketError: it is longer than 107 bytes.
    """
    length = len(os.fsencode(path))
    if length > _MAX_PATH_BYTES:
        raise SocketError(
            f"socket path {path} has {length} bytes; "
            f"want at most {_MAX_PATH_BYTES}: use a folder with a shorter path"
        )
