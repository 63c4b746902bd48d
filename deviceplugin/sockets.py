"""gRPC on unix sockets in folders that others clean up: served again where a socket is gone."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import grpc

# sockaddr_un.sun_path holds 108 bytes with the terminating zero; see unix(7).
_MAX_PATH_BYTES: Final = 107


class SocketError(Exception):
    """A unix socket cannot be served."""


_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class _Mistakes(grpc.aio.ServerInterceptor):
    """Keeps the errors that no handler should raise: gRPC answers them, and goes on."""

    def __init__(self) -> None:
        self.made: Final[asyncio.Queue[Exception]] = asyncio.Queue()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the watched handler of a call, which answers once or by a stream; None if none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream), **codec)
        return grpc.unary_unary_rpc_method_handler(self._answer(handler.unary_unary), **codec)

    def _answer(self, behavior: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            with self._kept():
                return await behavior(request, context)

        return answer

    def _stream(self, behavior: Any) -> Any:
        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._kept():
                async with aclosing(behavior(request, context)) as answers:
                    async for answer in answers:
                        yield answer

        return stream

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise  # a refusal; and what gRPC says of a caller that is gone
        except Exception as error:
            self.made.put_nowait(error)
            raise


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
        self._mistakes = _Mistakes()

    async def raise_mistake(self) -> NoReturn:
        """Wait for an error that no handler should raise, which was answered, and raise it."""
        raise await self._mistakes.made.get()

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
        server = grpc.aio.server(interceptors=[self._mistakes], options=list(self._options))
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
