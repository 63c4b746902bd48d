"""The page's HTTP server, on loopback only: its files, a stream of changes, one explanation."""

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Final

import msgspec
import structlog
from aiohttp import web

from process.clock import Clock
from process.connections import ConnectionLimits, Connections, Stage
from process.telemetry import HttpServer
from scheduler.page.assets import INDEX, Asset, load_assets
from scheduler.page.board import Board
from scheduler.page.explainer import Explainer, TooManyQuestionsError
from scheduler.page.requests import SECURITY_HEADERS, why_not_answered

log = structlog.get_logger()

LOOPBACK: Final = "127.0.0.1"
MOST_STREAMS: Final = 8
BEAT_S: Final = 10.0
WRITE_LIMIT_S: Final = 10.0
_CONNECTIONS: Final = 48
_MOST_BYTES: Final = 48 * 1024  # of one write; no more than about this is held for a client
_GZIP: Final = 16 + 12  # zlib's wbits: gzip with a window of 4 KiB, so that a stream takes 30 KiB
_MEMORY_LEVEL: Final = 5
_RETRY_MS: Final = 2000
_MOST_DIGITS: Final = 15
_KERNEL_BYTES: Final = 128 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer(HttpServer):
    """``GET /``, the page's files, ``/events`` and ``/explain``; nothing can be changed.

    ``/events`` is a stream of server-sent events: ``piece`` for each document that changed, after
    ``reset`` where the client's ``Last-Event-ID`` is of no use; ``synced`` once it has everything,
    and ``beat`` every ten seconds. A client that does not read is dropped.

    Args:
        board: the documents.
        explainer: says why a pod waits.
        why_not: the reason why this replica does not serve the page now, or None.
        clock: paces the streams.
        port: on loopback; 0 takes a free one.
        beat_s: pause between two signs of life.
        write_limit_s: how long a client may leave unread what was sent.

    Attributes:
        streams: how many are open now.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        board: Board,
        explainer: Explainer,
        *,
        why_not: Callable[[], str | None],
        clock: Clock,
        port: int,
        beat_s: float = BEAT_S,
        write_limit_s: float = WRITE_LIMIT_S,
    ) -> None:
        self._board = board
        self._explainer = explainer
        self._why_not = why_not
        self._clock = clock
        self._beat_s = beat_s
        self._write_limit_s = write_limit_s
        self.streams = 0
        self._stopping = False
        self._held = Connections(ConnectionLimits(most=_CONNECTIONS, idle_s=60.0))
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        for name, asset in load_assets().items():
            app.router.add_get("/" if name == INDEX else f"/{name}", _serve(asset))
        app.router.add_get("/events", self._events, allow_head=False)
        app.router.add_get("/explain", self._explain, allow_head=False)
        super().__init__(app, host=LOOPBACK, port=port, connections=self._held)

    async def start(self) -> None:
        """Listen; raise OSError if the port is taken."""
        self._stopping = False
        await super().start()

    async def stop(self, limit_s: float) -> None:
        """Stop accepting, and end the streams, which otherwise never end."""
        self._stopping = True
        self._board.wake()
        await super().stop(limit_s)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse who must not ask, and add the headers that every answer has."""
        self._enter(request, Stage.JUDGING)
        try:
            response = await self._answer(request, handler)
        except web.HTTPException as refused:
            response = web.Response(status=refused.status, text=f"{refused.text or refused.reason}")
        finally:
            self._enter(request, Stage.IDLE)
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = why_not_answered(request.headers)
        if refusal is not None:
            return web.Response(status=403, text=f"{refusal}\n")
        why_not = self._why_not()
        if why_not is not None:
            return web.Response(status=503, text=f"{why_not}\n", headers={"Retry-After": "2"})
        return await handler(request)

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, name = request.query.get("namespace", ""), request.query.get("pod", "")
        try:
            found = await self._explainer.explain(namespace, name)
        except TooManyQuestionsError as error:
            return web.Response(status=503, text=f"{error}\n", headers={"Retry-After": "1"})
        if found is None:
            return web.Response(status=404, text="no such pod waits for a card\n")
        return web.Response(
            body=msgspec.json.encode(found),
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.streams >= MOST_STREAMS:
            text = f"{self.streams} pages are open, and no more are served\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "10"})
        self.streams += 1
        try:
            async with self._board.watched():
                return await self._stream(request)
        finally:
            self.streams -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                **SECURITY_HEADERS,
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        _bound_buffer(request)
        out = _Stream(request, response, limit_s=self._write_limit_s)
        await response.prepare(request)
        try:
            await self._follow(request, out)
        except (TimeoutError, ConnectionError):
            log.info("page_stream_dropped", reason="the client does not read")
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _follow(self, request: web.Request, out: "_Stream") -> None:
        pieces = self._board.pieces
        version = _resumed(request, self._board)
        await out.write(f"retry: {_RETRY_MS}\n\n".encode())
        if version is None:
            version = 0
            await out.write(b"event: reset\ndata: {}\n\n")
        synced = False
        while not self._stopping and self._why_not() is None:
            batch = pieces.since(version, most_bytes=_MOST_BYTES)
            if batch:
                events = (
                    b'id: %s.%d\nevent: piece\ndata: {"key":%s,"value":%s}\n\n'
                    % (pieces.epoch.encode(), one.version, msgspec.json.encode(one.key), one.body)
                    if one.body is not None
                    else b'id: %s.%d\nevent: piece\ndata: {"key":%s}\n\n'
                    % (pieces.epoch.encode(), one.version, msgspec.json.encode(one.key))
                    for one in batch
                )
                version = batch[-1].version
                await out.write(b"".join(events))
                await asyncio.sleep(0)  # a client that reads fast never makes the write wait
            elif not synced:
                synced = True
                await out.write(self._time_event("synced"))
            elif not await self._board.wait_changed(version, limit_s=self._beat_s):
                await out.write(self._time_event("beat"))

    def _time_event(self, kind: str) -> bytes:
        now = self._clock.now().astimezone(UTC).isoformat(timespec="milliseconds")
        return f'event: {kind}\ndata: {{"now":"{now}"}}\n\n'.encode()

    def _enter(self, request: web.Request, stage: Stage) -> None:
        transport = request.transport
        if transport is not None:
            descriptor: int = transport.get_extra_info("socket").fileno()
            self._held.enter(descriptor, stage, abort=transport.abort)


class _Stream:
    """Writes to one client, compressed if it accepts that; waits while it does not read."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, *, limit_s: float
    ) -> None:
        self._response = response
        self._limit_s = limit_s
        self._zip = None
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.headers["Content-Encoding"] = "gzip"
            self._zip = zlib.compressobj(1, zlib.DEFLATED, _GZIP, _MEMORY_LEVEL)

    async def write(self, data: bytes) -> None:
        """Send *data*.

        Raises:
            TimeoutError: the client has not read what was sent before.
            ConnectionError: it is gone.
        """
        if self._zip is not None:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        async with asyncio.timeout(self._limit_s):
            await self._response.write(data)


def _bound_buffer(request: web.Request) -> None:
    """Limit what the kernel holds for a client that does not read; by itself it takes megabytes."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)


def _resumed(request: web.Request, board: Board) -> int | None:
    """Return the version up to which the client has everything; None if it has to start anew."""
    last = request.headers.get("Last-Event-ID") or request.query.get("since", "")
    epoch, _, number = last.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        return None
    return int(number) if board.pieces.resumable(epoch, int(number)) else None


def _serve(asset: Asset) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        headers = {"ETag": f'"{asset.etag}"', "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = asset.content_type
        return web.Response(body=asset.body, headers=headers)

    return handle
