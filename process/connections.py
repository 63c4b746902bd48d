"""Limits on a server's connections: how many at once, and how long each may idle."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from process.sockets import bound_socket

BACKLOG: Final = 128
"""Connections that the kernel keeps until they are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits that protect a server from its clients.

    One TLS connection takes about 350 KiB before its first request: asyncio's SSLProtocol holds
    a buffer of 256 KiB for each (``asyncio.sslproto.SSLProtocol.max_size``), or of 32 KiB after
    :func:`process.memory.read_tls_in_small_pieces`.

    Attributes:
        most: connections at once; one more replaces the least important one (see :class:`Stage`).
        first_request_s: seconds from the connection, TLS included, until the head of its first
            request is read.
        idle_s: seconds between two requests. Go's HTTP client, which kube-apiserver uses, closes an
            idle connection after 90 s; the server should not close it first.
    """

    most: int
    first_request_s: float = 5.0
    idle_s: float = 100.0


class Stage(Enum):
    """The state of a connection; those first in this order are closed first."""

    NEW = 0  # no request yet
    IDLE = 1  # was answered, and is kept alive
    READING = 2  # its request is being read
    JUDGING = 3  # its request is being handled: never closed for another


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    since: float
    # When it is closed unless its stage changes; None while it has a request. The timer may be
    # earlier, and then is set again: cancelling one for each request would take more time.
    closes_at: float | None
    timer: asyncio.TimerHandle | None = None
    stage: Stage = Stage.NEW
    abort: Callable[[], None] | None = None


class Connections:
    """The open connections of one server and their stages, by file descriptor.

    asyncio calls ``accept`` of the listening socket, which is where connections are counted:
    before TLS, and so before they take memory.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: dict[int, _Connection] = {}

    @property
    def count(self) -> int:
        """The number of open connections."""
        self._forget_closed()
        return len(self._open)

    def listen(self, host: str, port: int) -> socket.socket:
        """Return a listening socket whose connections are counted; OSError as from ``bind``."""
        listening = bound_socket(host, port, kind=_Listening)
        listening.connections = self
        try:
            listening.listen(BACKLOG)
            listening.settimeout(0)
        except OSError:
            listening.close()
            raise
        return listening

    def enter(
        self, descriptor: int, stage: Stage, *, abort: Callable[[], None] | None = None
    ) -> None:
        """Set a connection's stage; connections of other sockets are ignored.

        Args:
            descriptor: of the connection's socket.
            stage: the new stage.
            abort: closes it. A transport that has paused reading would not notice that its
                socket was shut down.
        """
        held = self._open.get(descriptor)
        if held is None:
            return
        held.stage = stage
        held.abort = abort or held.abort
        if stage is Stage.JUDGING:
            held.closes_at = None
            return
        held.since = asyncio.get_running_loop().time()
        if stage is Stage.IDLE:
            self._close_later(descriptor, held, self._limits.idle_s)
        else:
            held.closes_at = None

    def welcome(self, connection: socket.socket) -> bool:
        """Count an accepted connection; return False if there is no room for it."""
        self._forget_closed()
        if len(self._open) >= self._limits.most and not self._make_room():
            return False
        descriptor = connection.fileno()
        held = _Connection(connection, asyncio.get_running_loop().time(), closes_at=None)
        self._close_later(descriptor, held, self._limits.first_request_s)
        self._open[descriptor] = held
        return True

    def _close_later(self, descriptor: int, held: _Connection, delay_s: float) -> None:
        """Close a connection *delay_s* seconds after it entered its stage."""
        held.closes_at = held.since + delay_s
        if held.timer is not None and held.timer.when() > held.closes_at:
            self._stop_timer(held)
        if held.timer is None:
            self._set_timer(descriptor, held, held.closes_at)

    def _set_timer(self, descriptor: int, held: _Connection, at: float) -> None:
        loop = asyncio.get_running_loop()
        held.timer = loop.call_at(at, self._on_timer, descriptor, held)

    def _on_timer(self, descriptor: int, held: _Connection) -> None:
        held.timer = None
        if held.closes_at is None:
            return
        if asyncio.get_running_loop().time() < held.closes_at:
            self._set_timer(descriptor, held, held.closes_at)
        else:
            self._close(descriptor, held)

    def _make_room(self) -> bool:
        found = [(fd, held) for fd, held in self._open.items() if held.stage is not Stage.JUDGING]
        if not found:
            return False
        descriptor, least_missed = min(found, key=lambda each: (each[1].stage.value, each[1].since))
        self._close(descriptor, least_missed)
        return True

    def _close(self, descriptor: int, held: _Connection) -> None:
        """Close a connection; its transport notices that as if the client had disconnected."""
        self._stop_timer(held)
        if self._open.get(descriptor) is held:
            del self._open[descriptor]
        if held.abort is not None:
            held.abort()
            return
        try:
            held.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is already closed

    def _forget_closed(self) -> None:
        gone = [fd for fd, held in self._open.items() if held.socket.fileno() != fd]
        for fd in gone:
            self._stop_timer(self._open.pop(fd))

    @staticmethod
    def _stop_timer(held: _Connection) -> None:
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None


class _Listening(socket.socket):
    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self.connections.welcome(connection):
            return connection, address
        connection.close()
        # The error of accept for a connection closed while it waited; asyncio continues after it.
        raise ConnectionAbortedError
