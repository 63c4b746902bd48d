"""By which of two ways this node knows whose container starts."""

import math
from collections.abc import Callable
from enum import Enum
from typing import Final

import structlog

from deviceplugin.nri.interface import Connection, Status
from fracgpu import names
from process.clock import Clock

log = structlog.get_logger()

# A runtime that restarts removes its socket for some seconds. Only after this long does a node that
# had NRI count as one without: what was allocated before starts by NRI alone.
_GONE_S: Final = 30.0
# A runtime whose NRI was switched off leaves its socket behind.
_ABSENT: Final = (Connection.NO_SOCKET, Connection.NO_LISTENER)

UNDECIDED: Final = "the container runtime has not been tried for NRI yet"


class Way(Enum):
    """How it is known whose container starts; the value is on the Node and a metric label.

    NRI: the runtime names the pod and the container, and gives the cards that we answer.
    LISTED: kubelet lists one container, and a hook verifies it before its first process.
    """

    NRI = names.IDENTITY_NRI
    LISTED = names.IDENTITY_LISTED


class Ways:
    """Follows the runtime's NRI.

    Args:
        hook_problem: why containers cannot be verified without NRI, or None.
        clock: for durations.
        record: called with the way, or ``none``.
        on_change: called when the connection has changed.
    """

    def __init__(
        self,
        *,
        hook_problem: Callable[[], str | None],
        clock: Clock,
        record: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._hook_problem = hook_problem
        self._clock = clock
        self._record = record
        self._on_change = on_change
        self._status: Status | None = None
        self._connected_at_s = -math.inf

    def observe(self, status: Status) -> None:
        """Take the connection's new status."""
        if self.connected or status.connection is Connection.CONNECTED:
            self._connected_at_s = self._clock.monotonic()
        self._status = status
        way = self.way()
        log.info("identity_known_by", way=way.value if way is not None else None)
        self._on_change()

    @property
    def connected(self) -> bool:
        """Whether the runtime asks us before it creates a container."""
        return self._status is not None and self._status.connection is Connection.CONNECTED

    def way(self) -> Way | None:
        """Return the way now; None before the runtime has been tried."""
        if self._status is None or (
            self._status.connection is Connection.CONNECTING and self._gone_s() == math.inf
        ):
            way = None
        elif self._status.connection in _ABSENT and self._gone_s() > _GONE_S:
            way = Way.LISTED
        else:
            way = Way.NRI
        self._record(way.value if way is not None else "none")
        return way

    @property
    def away(self) -> str | None:
        """Why no container can start by the present way at this moment, or None."""
        way = self.way()
        if way is None or self._status is None:
            return UNDECIDED
        if way is Way.LISTED:
            return self._hook_problem()
        if self.connected:
            return None
        return f"the container runtime is not connected by NRI: {self._status.problem}"

    @property
    def problem(self) -> str | None:
        """Why the node shares nothing: as :attr:`away`, unless that may be over in a moment."""
        away, way = self.away, self.way()
        brief = way is None or (way is Way.NRI and self._gone_s() <= _GONE_S)
        return None if brief else away

    def _gone_s(self) -> float:
        return self._clock.monotonic() - self._connected_at_s
