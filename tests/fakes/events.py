"""Records Events instead of writing them."""

from dataclasses import dataclass, field

from kube.events import EventLevel, EventRecorder, Regarding


@dataclass
class RecordedEvents(EventRecorder):
    """Each Event in order: ``Kind/name`` of its object, the reason, the note, and its level."""

    events: list[tuple[str, str, str]] = field(default_factory=list)
    levels: list[EventLevel] = field(default_factory=list)

    async def emit(
        self,
        regarding: Regarding,
        *,
        reason: str,
        note: str,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        self.events.append((f"{regarding.kind.kind}/{regarding.name}", reason, note))
        self.levels.append(level)
