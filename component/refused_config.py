"""Reports refused edits of a ConfigMap as Events on it, where their author looks."""

import asyncio

from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import CONFIGMAPS

REASON = "ConfigRefused"


class RefusedConfigReporter:
    """Queues reasons, and records an Event for each.

    Args:
        events: records the Events.
        name: of the ConfigMap.
        namespace: of the ConfigMap.
    """

    def __init__(self, events: EventRecorder, *, name: str, namespace: str) -> None:
        self._events = events
        self._regarding = Regarding(kind=CONFIGMAPS, name=name, namespace=namespace)
        self._waiting: asyncio.Queue[str] = asyncio.Queue()

    def key(self, key: str, reason: str) -> None:
        """Report that the value of *key* is not in use, and why."""
        self.note(f"key {key} is not in use, the last good one is: {reason}")

    def note(self, note: str) -> None:
        """Report *note* as it is."""
        self._waiting.put_nowait(note)

    async def run(self) -> None:
        """Record Events until cancelled."""
        while True:
            await self._events.emit(
                self._regarding,
                reason=REASON,
                note=await self._waiting.get(),
                level=EventLevel.WARNING,
            )
