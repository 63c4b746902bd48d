"""A process's telemetry: metrics for Prometheus, probes for kubelet."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from process.connections import BACKLOG, ConnectionLimits, Connections, Stage
from process.sockets import bound_socket

Registry = CollectorRegistry
"""Where a role's metrics live; a role names this type without importing the metrics library."""

_STARTING: Final = "still starting"
_STOPPING: Final = "stopping"
_METRICS, _LIVEZ, _READYZ = "/metrics", "/livez", "/readyz"
_PLAIN_TEXT: Final = ""  # what is served to a client that accepts anything
_OPEN_METRICS_END: Final = b"# EOF\n"
# For a server that any client can reach: at most 64 KiB of a body are buffered until they are read,
# data after a response is awaited for 1 s, bodies are not decompressed, and the handler of a client
# that disconnected is cancelled. How long a connection may idle is for `Connections` to say alone:
# aiohttp's own limit is a year.
_BOUNDS: Final[Mapping[str, Any]] = {
    "read_bufsize": 64 * 1024,
    "lingering_time": 1.0,
    "auto_decompress": False,
    "handler_cancellation": True,
    "keepalive_timeout": 365 * 24 * 3600.0,
}
# Of the port for telemetry: kubelet's probes, a few Prometheuses and people.
_MOST_CONNECTIONS: Final = 64
_FORMS_PREPARED: Final = 4  # Prometheus uses one or two; other clients must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a process is ready, and why.

    Attributes:
        checks: each check's reason not to be ready, or None.
        remarks: further information, which does not affect readiness.
    """

    checks: Mapping[str, str | None] = field(default_factory=dict)
    remarks: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return not any(self.checks.values())


class ReadyGate:
    """The readiness checks of a process; closed while it starts and once it stops."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._remarks: dict[str, Callable[[], str | None]] = {}
        self._closed: str | None = _STARTING

    def add(self, name: str, check: Callable[[], str | None]) -> None:
        """Call *check* at each probe: it returns the reason not to be ready, or None."""
        self._checks[name] = check

    def remark(self, name: str, tell: Callable[[], str | None]) -> None:
        """Show the text of *tell* at each probe; it does not affect readiness."""
        self._remarks[name] = tell

    def open(self) -> None:
        """Leave readiness to the checks from now on."""
        self._closed = None

    def close(self, reason: str = _STOPPING) -> None:
        """Report not ready from now on, for good."""
        self._closed = reason

    def readiness(self) -> Readiness:
        """Return the result of every check now."""
        checks = {name: check() for name, check in self._checks.items()}
        remarks = {name: tell() for name, tell in self._remarks.items()}
        return Readiness(checks={"process": self._closed, **checks}, remarks=remarks)


def new_registry() -> Registry:
    """Return a registry with the process's own memory, CPU and garbage collection metrics."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Prepared:
    """Many metrics that change all at once, encoded in advance, so that a scrape need not wait.

    They must not be in the registry that is served as well.
    """

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        encode, form = choose_encoder(_PLAIN_TEXT)
        self._asked = {form: encode}  # by content type: many headers ask for the same one
        self._texts: Mapping[str, bytes] = {}
        self._valid: Callable[[], bool] = lambda: False
        self._encoding = threading.Lock()

    def prepare(self, valid: Callable[[], bool]) -> None:
        """Encode them in every format requested so far; best called in a thread.

        Args:
            valid: whether the encoded text is still current; called at each scrape.
        """
        texts = {form: encode(self.registry) for form, encode in tuple(self._asked.items())}
        self._texts, self._valid = texts, valid

    def found(self, accept: str) -> bytes | None:
        """Return the encoded text if it is still current, else None."""
        _, form = choose_encoder(accept)
        return self._texts.get(form) if self._valid() else None

    def text(self, accept: str) -> bytes:
        """Return the encoded text if it is still current, else encode it now; call in a thread."""
        with self._encoding:  # who waited finds it
            found = self.found(accept)
            return self._encoded(accept) if found is None else found

    async def text_in_time(self, accept: str) -> bytes:
        """Return the text; what is not at hand would hold the event loop for tens of ms."""
        found = self.found(accept)
        return await asyncio.to_thread(self.text, accept) if found is None else found

    def _encoded(self, accept: str) -> bytes:
        valid = self._valid()
        encode, form = choose_encoder(accept)
        text = encode(self.registry)
        if form in self._asked or len(self._asked) < _FORMS_PREPARED:
            self._asked[form] = encode
            if valid:
                self._texts = {**self._texts, form: text}
        return text


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, whatever carries it.

    With *last* the connection takes no further request, and closes.
    """

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    last: bool = False


class Telemetry:
    """What a process answers to GET ``/metrics``, ``/livez`` and ``/readyz``.

    *liveness* returns the reason why only a restart helps, or None.
    """

    def __init__(
        self,
        registry: Registry,
        readiness: Callable[[], Readiness],
        *,
        liveness: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._readiness = readiness
        self._liveness = liveness

    def answer(self, path: str, *, accept: str, before: Sequence[bytes] = ()) -> Answer | None:
        """Return the answer to a GET, or None if *path* is none of its own.

        Args:
            path: of the request.
            accept: its header of that name, which decides the format of the metrics.
            before: metrics that were encoded in this format, to be served with the others.
        """
        if path == _METRICS:
            encode, content_type = choose_encoder(accept)
            parts = [part.removesuffix(_OPEN_METRICS_END) for part in before]
            return Answer(200, b"".join((*parts, encode(self._registry))), content_type)
        if path == _LIVEZ:
            problem = self._liveness()
            return Answer(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        return self._readyz() if path == _READYZ else None

    def _readyz(self) -> Answer:
        state = self._readiness()
        shown = [*state.checks.items(), *state.remarks.items()]
        lines = [f"{name}: {reason or 'ok'}" for name, reason in shown]
        lines.append("ready" if state.ready else "not ready")
        return Answer(200 if state.ready else 503, ("\n".join(lines) + "\n").encode())


def add_telemetry_routes(
    app: web.Application,
    *,
    registry: Registry,
    readiness: Callable[[], Readiness],
    prepared: Sequence[Prepared] = (),
    liveness: Callable[[], str | None] = lambda: None,
    guarded: Callable[[Handler], Handler] = lambda handler: handler,
) -> None:
    """Have a role's application answer the GET requests of :class:`Telemetry`, each *guarded*."""
    telemetry = Telemetry(registry, readiness, liveness=liveness)

    async def handle(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        parts = prepared if request.path == _METRICS else ()
        before = [await part.text_in_time(accept) for part in parts]
        answer = telemetry.answer(request.path, accept=accept, before=before)
        if answer is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": answer.content_type}
        response = web.Response(body=answer.body, status=answer.status, headers=headers)
        if request.path == _METRICS:
            response.enable_compression()
        return response

    for path in (_METRICS, _LIVEZ, _READYZ):
        app.router.add_get(path, guarded(handle))


class OtherProtocol(Protocol):
    """A second protocol on the same address: ``process.http2.Http2Connections``."""

    def or_else(self, http1: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol: ...

    async def stop(self, limit_s: float) -> None: ...


class HttpServer:
    """An aiohttp application on one address; stops without dropping a request.

    A ``process.lifecycle.Server``; a role's own aiohttp server may hold one of these. *connections*
    limits how many are open at once; the application sets the stage of each. *other* has each
    connection first, and hands on what is for the application.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        host: str,
        port: int,
        ssl_context: ssl.SSLContext | None = None,
        connections: Connections | None = None,
        other: OtherProtocol | None = None,
    ) -> None:
        self._connections = connections
        self._other = other
        self._both: asyncio.Server | None = None
        self._app = app
        self._host = host
        self._port = port
        self._ssl = ssl_context
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it listens on; before the start, the one configured."""
        if self._both is not None and self._both.sockets:
            return int(self._both.sockets[0].getsockname()[1])
        if self._runner is not None and self._runner.addresses:
            return int(self._runner.addresses[0][1])
        return self._port

    async def start(self) -> None:
        """Listen; raise OSError if the address is taken."""
        bounds = {} if self._connections is None else _BOUNDS
        runner = web.AppRunner(self._app, access_log=None, handle_signals=False, **bounds)
        await runner.setup()
        self._runner = runner
        listening = (
            bound_socket(self._host, self._port, kind=socket.socket)
            if self._connections is None
            else self._connections.listen(self._host, self._port)
        )
        if self._other is None:
            await web.SockSite(runner, listening, ssl_context=self._ssl).start()
            return
        http1 = cast("Callable[[], asyncio.BaseProtocol]", runner.server)
        self._both = await asyncio.get_running_loop().create_server(
            partial(self._other.or_else, http1), sock=listening, ssl=self._ssl, backlog=BACKLOG
        )

    async def stop(self, limit_s: float) -> None:
        """Stop accepting, let requests in flight finish within *limit_s* seconds, then close."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        both, self._both = self._both, None
        if both is not None:
            both.close()
        for site in tuple(runner.sites):
            await site.stop()
        await asyncio.sleep(0)  # a request read in this turn of the event loop counts as in flight
        if runner.server is not None:
            runner.server.pre_shutdown()  # closes idle connections
            async with asyncio.TaskGroup() as group:
                group.create_task(runner.server.shutdown(limit_s), name="http1")
                if self._other is not None:
                    group.create_task(self._other.stop(limit_s), name="other")
        await runner.cleanup()


class TelemetryServer(HttpServer):
    """``/metrics``, ``/livez`` and ``/readyz`` on a port of their own."""

    def __init__(
        self,
        registry: Registry,
        host: str,
        port: int,
        readiness: Callable[[], Readiness],
        *,
        prepared: Sequence[Prepared] = (),
        liveness: Callable[[], str | None] = lambda: None,
    ) -> None:
        app, connections = web.Application(), Connections(ConnectionLimits(most=_MOST_CONNECTIONS))
        add_telemetry_routes(
            app,
            registry=registry,
            readiness=readiness,
            prepared=prepared,
            liveness=liveness,
            guarded=partial(tracked, connections),
        )
        super().__init__(app, host=host, port=port, connections=connections)


def tracked(connections: Connections, handler: Handler) -> Handler:
    """Return a handler that tells *connections* when a client is owed an answer.

    Each route has its own: a middleware would be put together again for every request.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return await handler(request)
        descriptor: int = transport.get_extra_info("socket").fileno()
        connections.enter(descriptor, Stage.JUDGING, abort=transport.abort)
        try:
            return await handler(request)
        finally:
            # Of a client that is gone, another connection may have the descriptor by now.
            if request.transport is transport:
                connections.enter(descriptor, Stage.IDLE)

    return handle
