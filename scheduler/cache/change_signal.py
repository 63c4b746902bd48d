"""Notifies waiters of the next event of a pod or a node."""

import asyncio
from collections.abc import Callable

from process.clock import Clock, wait_at_most


class ChangeSignal:
    """Counts watch events, and wakes those who wait for the next one."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()
        self._listeners: list[Callable[[str], None]] = []

    @property
    def count(self) -> int:
        """Number of pod and node events received so far."""
        return self._count

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call *listener* on each event with the UID of the changed pod, or ``""`` for a node."""
        self._listeners.append(listener)

    def notify(self, pod_uid: str = "") -> None:
        """Signal an event of this pod, or of a node."""
        self._count += 1
        for listener in self._listeners:
            listener(pod_uid)
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, clock: Clock, *, limit_s: float) -> bool:
        """Wait at most *limit_s* for the next event; report whether it came."""
        return await wait_at_most(clock, self._next, limit_s=limit_s)
