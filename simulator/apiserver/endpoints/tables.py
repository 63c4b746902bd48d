"""Objects and lists as tables, which kubectl asks for when it shows columns.

Source: docs "API concepts" (Receiving resources as Tables) and k8s.io/apiserver
pkg/endpoints/handlers/response.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery.errors import bad_request
from simulator.apiserver.endpoints.columns import Printer, printer_of
from simulator.objects import Json, decode, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime

    from simulator.apiserver.apimachinery.resources import Resource

_VERSION: Final = "meta.k8s.io/v1"
_INCLUDED: Final = ("None", "Metadata", "Object")


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
        self._printer: Final[Printer] = printer_of(resource)
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
            "columnDefinitions": [one.body for one in self._printer.columns] if columns else None,
            "rows": [self._row(value, now) for value in items],
        }

    def _row(self, value: Json, now: datetime) -> Json:
        row: Json = {"cells": list(self._printer.cells(value, now))}
        if self._include == "Object":
            row["object"] = value
        elif self._include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": _VERSION,
                "metadata": value["metadata"],
            }
        return row
