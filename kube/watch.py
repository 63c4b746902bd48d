"""One watch of a collection: events since a resourceVersion, until the server ends the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from kube.client import KubeClient, selection
from kube.errors import KubeDecodeError, KubeError, error_from_status
from kube.kinds import Kind
from kube.objects import ObjectMeta, Raw, Status, WatchFrame, decode, identity, version_of


class EventType(Enum):
    """What happened to an object; a BOOKMARK has only the stream's resourceVersion."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind: of a namespace or all, by labels and fields."""

    kind: Kind
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """When a watch ends normally, and when silence means that the connection is dead.

    Attributes:
        server_s: the server ends the stream after this time; resuming it costs one request.
            A quiet collection gives no other sign of life: the API server (1.36) sends a
            bookmark only if something changed somewhere since the watch began.
        inactivity_s: silence after which the connection counts as dead; longer than *server_s*.
    """

    server_s: int = 60
    inactivity_s: float = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event, its object undecoded; *metadata* is None for a bookmark."""

    type: EventType
    resource_version: str
    object: Raw
    metadata: ObjectMeta | None


async def watch(
    client: KubeClient,
    selected: Selection,
    *,
    resource_version: str,
    limits: WatchLimits,
) -> AsyncGenerator[WatchEvent, None]:
    """Yield the events after *resource_version*; return when the server ends the stream.

    Resume from the ``resource_version`` of the last event, bookmarks included.

    Raises:
        Gone: the version is too old (an HTTP 410 or an ERROR event); list again.
        KubeDecodeError: a line was not a watch event.
        KubeError: the connection broke, was silent too long, or was refused.
    """
    path = selected.kind.path(namespace=selected.namespace)
    query = selection(
        label_selector=selected.label_selector, field_selector=selected.field_selector
    ) | {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(limits.server_s),
    }
    lines = client.transport.stream_lines(path, query=query, inactivity_s=limits.inactivity_s)
    async with aclosing(lines) as stream:
        async for line in stream:
            yield read_event(line, path=path)


def read_event(line: bytes, *, path: str) -> WatchEvent:
    """Return the event of one line of a watch of *path*.

    Raises:
        Gone: an ERROR event with code 410.
        KubeError: any other ERROR event.
        KubeDecodeError: not a watch event.
    """
    try:
        raw = decode(line, WatchFrame)
        if raw.type == "ERROR":
            raise _reported(decode(raw.object, Status), path=path)
        kind = EventType(raw.type)
        if kind is EventType.BOOKMARK:
            return WatchEvent(
                type=kind,
                resource_version=version_of(raw.object),
                object=raw.object,
                metadata=None,
            )
        metadata = identity(raw.object)
    except ValueError as error:
        raise KubeDecodeError(
            verb="WATCH", path=path, status=200, reason="NotAWatchEvent", message=str(error)
        ) from error
    return WatchEvent(
        type=kind,
        resource_version=metadata.resource_version,
        object=raw.object,
        metadata=metadata,
    )


def _reported(status: Status, *, path: str) -> KubeError:
    return error_from_status(
        verb="WATCH",
        path=path,
        status=status.code,
        reason=status.reason or "Unknown",
        message=status.message,
    )
