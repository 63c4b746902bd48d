"""Wakes those who wait for the next event of a pod or a node."""

import asyncio
from collections.abc import Callable

from process.clock import Clock, wait_at_most


class ChangeSignal:
    """Counts what the API server told us, and wakes those who wait for more."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()
        self._listeners: list[Callable[[str], None]] = []

    @property
    def count(self) -> int:
        """How many changes of pods and nodes we have heard of."""
        return self._count

    def listen(self, listener: Callable[[str], None]) -> None:
        """Tell *listener* of each change: the UID of the pod that changed, or ``""``."""
        self._listeners.append(listener)

    def notify(self, pod_uid: str = "") -> None:
        """Note one more change: of this pod, or of a node."""
        self._count += 1
        for listener in self._listeners:
            listener(pod_uid)
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, clock: Clock, *, limit_s: float) -> bool:
        """Wait for the next change, at most *limit_s*; tell whether it came."""
        return await wait_at_most(clock, self._next, limit_s=limit_s)
