"""Events on objects, as ``kubectl describe`` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Protocol

import structlog

from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.event_correlator import EventCorrelator
from kube.kinds import EVENTS, NODES, PODS, Kind
from kube.leader_election import micro_time

_log = structlog.get_logger()
_NOTE_LIMIT: Final = 1024  # bytes; the API server refuses a longer message


class WallClock(Protocol):
    """The part of a clock that an event needs."""

    def now(self) -> datetime: ...


class EventLevel(Enum):
    """What ``kubectl`` shows as TYPE."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Named(Protocol):
    """What tells an object from all others of its kind."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Regarding:
    """The object of an event; the namespace is empty for cluster-scoped objects."""

    kind: Kind
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def pod(cls, pod: Named) -> Regarding:
        """Return a pod as the object of an event."""
        return cls(kind=PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid)

    @classmethod
    def node(cls, name: str) -> Regarding:
        """Return a node as the object of an event.

        Its UID is its name, as in kubelet's events: ``kubectl describe node`` selects by it.
        """
        return cls(kind=NODES, name=name, uid=name)

    def reference(self) -> dict[str, str]:
        """Return the ``core/v1 ObjectReference``."""
        fields = {
            "apiVersion": self.kind.group_version,
            "kind": self.kind.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in fields.items() if value}


class EventRecorder:
    """Writes events in the name of one component.

    Without a *correlator* each call writes an object; with one, an event that was written already
    is counted up, and of too many about one object the last are dropped. That needs the right to
    patch events.

    Args:
        client: of the API server.
        component: shown as FROM, e.g. ``"fracgpu-scheduler"``.
        clock: for time stamps.
        instance: which replica, e.g. the pod's name.
        correlator: remembers what was written.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        clock: WallClock,
        *,
        instance: str = "",
        correlator: EventCorrelator | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._instance = instance or component
        self._correlator = correlator
        self.failed = 0
        self.dropped = 0

    async def emit(
        self,
        regarding: Regarding,
        *,
        reason: str,
        note: str,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        """Write one event. A failure is logged and counted, not raised: no decision rests on it."""
        # Events about cluster-scoped objects live in the default namespace, as kubelet writes them.
        namespace = regarding.namespace or "default"
        body = self._body(regarding, reason=reason, note=note, level=level)
        try:
            if self._correlator is None:
                await self._client.create(EVENTS, body, namespace=namespace)
            else:
                await self._correlated(self._correlator, regarding, body, namespace=namespace)
        except KubeError as error:
            self.failed += 1
            _log.warning(
                "event_not_written",
                reason=reason,
                object=f"{namespace}/{regarding.name}",
                error=str(error),
            )

    async def _correlated(
        self,
        correlator: EventCorrelator,
        regarding: Regarding,
        body: Mapping[str, Any],
        *,
        namespace: str,
    ) -> None:
        now = self._clock.now()
        event = (regarding, body["reason"], body["message"], body["type"])
        if not correlator.admits((regarding, body["type"]), now=now):
            self.dropped += 1
            _log.debug("event_dropped", reason=body["reason"], object=regarding.name)
            return
        same = correlator.same(event, now=now)
        if same is not None:
            changes = {"count": same.count + 1, "lastTimestamp": body["lastTimestamp"]}
            try:
                await self._client.patch(EVENTS, same.name, changes, namespace=same.namespace)
            except NotFound:
                correlator.forget(event)
            else:
                correlator.counted(event, now=now)
                return
        created = await self._client.create(EVENTS, body, namespace=namespace)
        name = created["metadata"]["name"]
        correlator.written(event, namespace=namespace, name=name, now=now)

    def _body(
        self, regarding: Regarding, *, reason: str, note: str, level: EventLevel
    ) -> Mapping[str, Any]:
        now = self._clock.now().astimezone(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "metadata": {"generateName": f"{regarding.name[:200].rstrip('-.')}."},
            "involvedObject": regarding.reference(),
            "reason": reason,
            "message": _fitting(note),
            "type": level.value,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "action": reason,
            "eventTime": micro_time(now),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def _fitting(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _NOTE_LIMIT:
        return note
    mark = "…"
    return encoded[: _NOTE_LIMIT - len(mark.encode())].decode(errors="ignore") + mark
