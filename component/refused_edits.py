"""Edits of a ConfigMap that were not taken: told where their author looks, as Events on it."""

import asyncio

from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import CONFIGMAPS

REASON = "ConfigRefused"


class RefusedConfigReporter:
    """Takes reasons at any time, and tells each of them in an Event of its own.

    Args:
        events: where they are told.
        name: of the ConfigMap.
        namespace: of the ConfigMap.
    """

    def __init__(self, events: EventRecorder, *, name: str, namespace: str) -> None:
        self._events = events
        self._regarding = Regarding(kind=CONFIGMAPS, name=name, namespace=namespace)
        self._waiting: asyncio.Queue[str] = asyncio.Queue()

    def key(self, key: str, reason: str) -> None:
        """Say that what stands under *key* is not in use, for this *reason*."""
        self.note(f"key {key} is not in use, the last good one is: {reason}")

    def note(self, note: str) -> None:
        """Say it in these words."""
        self._waiting.put_nowait(note)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._events.emit(
                self._regarding,
                reason=REASON,
                note=await self._waiting.get(),
                level=EventLevel.WARNING,
            )
