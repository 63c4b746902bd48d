"""How many connections a server holds at once, and for how long one may keep it waiting."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from process.sockets import bound_socket

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What strangers may take of a server.

    One TLS connection costs about 350 KiB before it has asked anything: asyncio's SSLProtocol holds
    a buffer of 256 KiB for each (``asyncio.sslproto.SSLProtocol.max_size``).

    Attributes:
        most: connections at once; one more takes the place of the one that is missed least.
        first_request_s: from the connection until the head of its first request is read, TLS
            included.
        idle_s: between two requests. Go's HTTP client, which kube-apiserver is, closes an idle
            connection after 90 s, and who closes first has no race to lose.
    """

    most: int
    first_request_s: float = 5.0
    idle_s: float = 100.0


class Stage(Enum):
    """What a connection is about; in the order in which connections are missed least."""

    NEW = 0  # has asked nothing yet
    IDLE = 1  # was answered, and is kept open
    READING = 2  # its request is being read
    JUDGING = 3  # is owed an answer: never closed for another


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    since: float
    timer: asyncio.TimerHandle | None = None
    stage: Stage = Stage.NEW
    abort: Callable[[], None] | None = None


class Connections:
    """The open connections of one server, each with its stage; known by their file descriptors.

    asyncio accepts connections by calling ``accept`` of the listening socket, which is where they
    are counted: before TLS, and so before they cost anything.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: dict[int, _Connection] = {}

    @property
    def count(self) -> int:
        """How many are open."""
        self._forget_closed()
        return len(self._open)

    def listen(self, host: str, port: int) -> socket.socket:
        """Give a listening socket whose connections are counted; OSError as ``bind`` raises it."""
        listening = bound_socket(host, port, kind=_Listening)
        listening.connections = self
        try:
            listening.listen(_BACKLOG)
            listening.settimeout(0)
        except OSError:
            listening.close()
            raise
        return listening

    def enter(
        self, descriptor: int, stage: Stage, *, abort: Callable[[], None] | None = None
    ) -> None:
        """Note what a connection is about now; unknown ones are somebody else's.

        Args:
            descriptor: of the connection's socket.
            stage: what it is about.
            abort: ends it. A transport that reads no more, because what came before is not read
                yet, would not hear of its socket's end.
        """
        held = self._open.get(descriptor)
        if held is None:
            return
        loop = asyncio.get_running_loop()
        self._stop_timer(held)
        held.stage, held.since = stage, loop.time()
        held.abort = abort or held.abort
        if stage is Stage.IDLE:
            held.timer = loop.call_later(self._limits.idle_s, self._close, descriptor, held)

    def welcome(self, connection: socket.socket) -> bool:
        """Count a connection that was accepted; False where there is no room for it."""
        self._forget_closed()
        if len(self._open) >= self._limits.most and not self._make_room():
            return False
        loop = asyncio.get_running_loop()
        descriptor = connection.fileno()
        held = _Connection(connection, loop.time())
        held.timer = loop.call_later(self._limits.first_request_s, self._close, descriptor, held)
        self._open[descriptor] = held
        return True

    def _make_room(self) -> bool:
        found = [(fd, held) for fd, held in self._open.items() if held.stage is not Stage.JUDGING]
        if not found:
            return False
        descriptor, least_missed = min(found, key=lambda each: (each[1].stage.value, each[1].since))
        self._close(descriptor, least_missed)
        return True

    def _close(self, descriptor: int, held: _Connection) -> None:
        """End a connection; its transport hears of that as if the other side had gone."""
        self._stop_timer(held)
        if self._open.get(descriptor) is held:
            del self._open[descriptor]
        if held.abort is not None:
            held.abort()
            return
        try:
            held.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def _forget_closed(self) -> None:
        gone = [fd for fd, held in self._open.items() if held.socket.fileno() != fd]
        for fd in gone:
            self._stop_timer(self._open.pop(fd))

    @staticmethod
    def _stop_timer(held: _Connection) -> None:
        if held.timer is not None:
            held.timer.cancel()


class _Listening(socket.socket):
    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self.connections.welcome(connection):
            return connection, address
        connection.close()
        # What accept says of a connection that ended while it waited; asyncio tries again later.
        raise ConnectionAbortedError
