"""Requests over HTTP/2, all callers' of one connection at once.

Go's client keeps two idle HTTP/1.1 connections to a host, so a caller that has more requests under
way shakes hands anew for most of them; over HTTP/2 it needs one connection.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from process.http2.connection import Http2Connection
from process.http2.request import Answerer, Bodies, Http2Limits

log = structlog.get_logger()

ALPN: Final = ("h2", "http/1.1")
"""What a TLS context offers so that callers may choose; those that know neither get HTTP/1.1."""

_MOST_BODIES: Final = 4  # of the largest size, that all connections may have in memory
_DEFAULTS: Final = Http2Limits()


class Http2Connections:
    """The HTTP/2 connections of one server.

    Args:
        answer: answers one request; what it does later is not cancelled if the caller gives up.
        body_limit: bytes of the largest body; a larger one is answered with 413.
        limits: on time and connections.
    """

    def __init__(
        self, answer: Answerer, *, body_limit: int, limits: Http2Limits = _DEFAULTS
    ) -> None:
        self._answer = answer
        self._limits = limits
        self._bodies = Bodies(largest=body_limit, most=_MOST_BODIES * body_limit)
        self._open: dict[Http2Connection, None] = {}  # in the order in which they came
        self._none_open = asyncio.Event()
        self._stopping = False

    def or_else(self, http1: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was just accepted.

        It is that of *http1* unless the caller chooses HTTP/2 in its TLS handshake.
        """
        return _ByAlpn(http2=self._new, http1=http1)

    def _new(self) -> Http2Connection:
        return Http2Connection(
            self._answer,
            bodies=self._bodies,
            limits=self._limits,
            opened=self._opened,
            closed=self._closed,
        )

    def _opened(self, connection: Http2Connection) -> None:
        self._open[connection] = None
        if self._stopping:  # its handshake took until now
            connection.drain()
        elif len(self._open) > self._limits.connections:
            idle = (other for other in self._open if other is not connection and not other.busy)
            replaced = next(idle, connection)
            log.info("http2_connection_ended", reason="too many", most=self._limits.connections)
            del self._open[replaced]
            replaced.drain()

    def _closed(self, connection: Http2Connection) -> None:
        self._open.pop(connection, None)
        if not self._open:
            self._none_open.set()

    async def stop(self, limit_s: float) -> None:
        """Take no further requests, finish those under way within *limit_s* seconds, then close."""
        self._stopping = True
        for connection in tuple(self._open):
            connection.drain()
        self._none_open.clear()
        try:
            async with asyncio.timeout(limit_s):
                while self._open:
                    await self._none_open.wait()
        except TimeoutError:
            for connection in tuple(self._open):
                connection.abort()


class _ByAlpn(asyncio.Protocol):
    """Hands a connection over to the protocol that TLS agreed on.

    Args:
        http2: returns the protocol of a connection whose caller chose ``h2``.
        http1: of any other.
    """

    def __init__(
        self,
        *,
        http2: Callable[[], asyncio.Protocol],
        http1: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._http2 = http2
        self._http1 = http1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        chosen = None if tls is None else tls.selected_alpn_protocol()
        protocol = self._http2() if chosen == ALPN[0] else self._http1()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
