"""Objects and lists as tables, which kubectl asks for when it shows columns.

Source: docs "API concepts" (Receiving resources as Tables), k8s.io/apiserver
pkg/endpoints/handlers/response.go and k8s.io/kubernetes pkg/printers/internalversion/printers.go.
Pods have columns of their own here, and custom resources those of their definition; of every other
kind there are the name and the age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fracgpu.k8s.pod import has_ended
from simulator.apiserver.apimachinery.errors import bad_request
from simulator.objects import Json, decode, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from simulator.apiserver.apimachinery.resources import Resource

_VERSION: Final = "meta.k8s.io/v1"
_INCLUDED: Final = ("None", "Metadata", "Object")
# The longest time that is shown in a unit, and its length, in seconds.
_UNITS: Final = ((120, 1, "s"), (3 * 3600, 60, "m"), (2 * 86_400, 3600, "h"))
_DAY_S: Final = 86_400


class Column(NamedTuple):
    """One column; kubectl shows those with a priority above 0 only with ``-o wide``."""

    name: str
    cell: Callable[[Json, datetime], Any]
    priority: int = 0
    type: str = "string"

    def body(self) -> Json:
        form = "name" if self.name == "Name" else ""
        found = {"name": self.name, "type": self.type, "format": form}
        return {**found, "description": "", "priority": self.priority}


def wants_table(accept: str) -> bool:
    """Report whether the first media type that is accepted and known here is a table."""
    for choice in accept.split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        named = dict(part.split("=", 1) for part in parameters if "=" in part)
        if kind not in ("application/json", "*/*", "application/*"):
            continue
        if not named.get("as"):
            return False
        if (named["as"], named.get("g"), named.get("v")) == ("Table", "meta.k8s.io", "v1"):
            return True
    return False


class Tables:
    """Turns what the API server would send into tables.

    Args:
        resource: of the objects.
        include: the ``includeObject`` of the request: how much of each object a row has.
        now: the time, to tell ages.

    Raises:
        ApiError: 400: *include* is not known.
    """

    def __init__(self, resource: Resource, include: str, now: Callable[[], datetime]) -> None:
        if include and include not in _INCLUDED:
            raise bad_request(f"unrecognized includeObject value: {include!r}")
        self._columns: Final = columns_of(resource)
        self._include = include or "Metadata"
        self._now = now

    def of_list(self, body: bytes) -> bytes:
        """Return a list as a table."""
        found = decode(body)
        return encode(self._table(found["items"], found["metadata"]))

    def of_object(self, body: bytes) -> bytes:
        """Return one object as a table."""
        found = decode(body)
        version = {"resourceVersion": found["metadata"].get("resourceVersion", "")}
        return encode(self._table([found], version))

    async def of_watch(self, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield a watch's events with tables of one row; only the first has the columns."""
        shown = False
        try:
            async for line in lines:
                event = decode(line)
                if event["type"] in ("ERROR", "BOOKMARK"):
                    yield line
                    continue
                value = event["object"]
                version = {"resourceVersion": value["metadata"].get("resourceVersion", "")}
                table = self._table([value], version, columns=not shown)
                shown = True
                yield encode({"type": event["type"], "object": table}) + b"\n"
        finally:
            await lines.aclose()

    def _table(self, items: Sequence[Json], meta: Json, *, columns: bool = True) -> Json:
        now = self._now()
        return {
            "kind": "Table",
            "apiVersion": _VERSION,
            "metadata": meta,
            "columnDefinitions": [column.body() for column in self._columns] if columns else None,
            "rows": [self._row(value, now) for value in items],
        }

    def _row(self, value: Json, now: datetime) -> Json:
        row: Json = {"cells": [column.cell(value, now) for column in self._columns]}
        if self._include == "Object":
            row["object"] = value
        elif self._include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": _VERSION,
                "metadata": value["metadata"],
            }
        return row


def columns_of(resource: Resource) -> Sequence[Column]:
    """Return the columns of a resource; with a definition, those that it adds."""
    if resource.printer_columns:
        return (_NAME, *map(_custom, resource.printer_columns))
    return _COLUMNS.get(resource.qualified, (_NAME, _AGE))


def age(text: str | None, now: datetime) -> str:
    """Return how long ago *text* was, in the unit in which kubectl shows it."""
    try:
        seconds = int((now - datetime.fromisoformat(text or "").astimezone(UTC)).total_seconds())
    except ValueError:
        return "<unknown>"
    for below, unit, name in _UNITS:
        if seconds < below:
            return f"{max(0, seconds) // unit}{name}"
    return f"{seconds // _DAY_S}d"


def _at(*path: str, default: Any = "<none>") -> Callable[[Json, datetime], Any]:
    """Return a cell that is the value at a path."""

    def cell(value: Json, _now: datetime) -> Any:
        found: Any = value
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return default if found is None else found

    return cell


def _since(*path: str) -> Callable[[Json, datetime], Any]:
    """Return a cell that tells how long ago the time at a path was."""
    moment = _at(*path, default=None)
    return lambda value, now: age(found, now) if (found := moment(value, now)) else "<unknown>"


def _custom(column: Mapping[str, Any]) -> Column:
    path = column["jsonPath"].strip(".").split(".")
    cell = _since(*path) if column["type"] == "date" else _at(*path, default=None)
    return Column(column["name"], cell, column.get("priority", 0), column["type"])


def _pod_ready(pod: Json, _now: datetime) -> str:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return f"{sum(bool(one.get('ready')) for one in containers)}/{len(pod['spec']['containers'])}"


def _pod_status(pod: Json, _now: datetime) -> str:
    status = pod.get("status") or {}
    phase: str = status.get("phase", "")
    if pod["metadata"].get("deletionTimestamp") and not has_ended(phase):
        return "Terminating"
    gated = any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ())
    reason = "SchedulingGated" if gated else status.get("reason") or phase
    for one in reversed(status.get("containerStatuses") or ()):
        for state in ("waiting", "terminated"):
            reason = ((one.get("state") or {}).get(state) or {}).get("reason") or reason
    return str(reason)


def _pod_restarts(pod: Json, _now: datetime) -> int:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(one.get("restartCount", 0) for one in containers)


_NAME: Final = Column("Name", _at("metadata", "name"))
_AGE: Final = Column("Age", _since("metadata", "creationTimestamp"))
_COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "pods": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), 1),
        Column("Node", _at("spec", "nodeName"), 1),
    ),
}
