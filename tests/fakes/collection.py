"""One collection over real HTTP, list and watch, with faults on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from aiohttp import web

from tests.support.scripted import serving

Json = dict[str, Any]
_END = b""


class HowGone(Enum):
    """The two ways an API server says that a resourceVersion is too old."""

    BY_STATUS = "an HTTP status"
    BY_EVENT = "an ERROR event"


class Collection:
    """ConfigMaps under one counter of versions; every request must be for ``/api/v1/configmaps``.

    Attributes:
        down: answer everything with 503.
        forbidden: answer everything with 403.
        unserved: answer everything with 404, as for a kind that does not exist.
        refusals: how many requests were answered so.
        lists: how many lists were asked for.
        watches: from which version each watch was asked for.
    """

    def __init__(self) -> None:
        self.down = False
        self.forbidden = False
        self.unserved = False
        self.refusals = 0
        self.how_gone = HowGone.BY_EVENT
        self.lists = 0
        self.watches: list[str] = []
        self._version = 100
        self._oldest = 100
        self._objects: dict[str, Json] = {}
        self._history: list[tuple[int, bytes]] = []
        self._open: list[asyncio.Queue[bytes]] = []
        self._born = 0

    @property
    def version(self) -> str:
        return str(self._version)

    @property
    def open_watches(self) -> int:
        return len(self._open)

    # -- changes -------------------------------------------------------------------------------

    def put(self, name: str, value: Any = None, *, reborn: bool = False) -> None:
        """Write an object; *reborn* gives it a new UID, as after a delete and a create."""
        old = self._objects.get(name)
        if old is None or reborn:
            self._born += 1
        uid = f"uid-{self._born}" if old is None or reborn else old["metadata"]["uid"]
        self._version += 1
        metadata = {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": self.version}
        new: Json = {"metadata": metadata, "value": value}
        self._objects[name] = new
        self._record("ADDED" if old is None else "MODIFIED", new)

    def remove(self, name: str) -> None:
        gone = self._objects.pop(name)
        self._version += 1
        gone["metadata"] = gone["metadata"] | {"resourceVersion": self.version}
        self._record("DELETED", gone)

    def bookmark(self) -> None:
        """Move every watcher on to the newest version without an object."""
        self._version += 1
        self._send(event("BOOKMARK", {"metadata": {"resourceVersion": self.version}}))

    def inject(self, line: bytes) -> None:
        """Send these bytes to every watcher."""
        self._send(line)

    def cut(self) -> None:
        """End every watch, as a server does when its time is up."""
        self._send(_END)

    def forget(self) -> None:
        """Drop all history: a watch from an older version gets 410."""
        self._oldest = self._version
        self._history.clear()

    def _record(self, type_: str, obj: Json) -> None:
        line = event(type_, obj)
        self._history.append((self._version, line))
        self._send(line)

    def _send(self, line: bytes) -> None:
        for queue in self._open:
            queue.put_nowait(line)

    # -- answers -------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return status(503, "ServiceUnavailable")
        if self.unserved:
            self.refusals += 1
            return web.Response(status=404, text="404 page not found")
        if self.forbidden:
            return status(403, "Forbidden")
        assert request.path == "/api/v1/configmaps", request.path
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        items = list(self._objects.values())
        return web.json_response({"metadata": {"resourceVersion": self.version}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = request.query["resourceVersion"]
        self.watches.append(since)
        if int(since) < self._oldest and self.how_gone is HowGone.BY_STATUS:
            return status(410, "Expired")
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        if int(since) < self._oldest:
            await response.write(event("ERROR", {"code": 410, "reason": "Expired"}))
            return response
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for version, line in self._history:
            if version > int(since):
                queue.put_nowait(line)
        self._open.append(queue)
        try:
            while (line := await queue.get()) != _END:
                await response.write(line)
        finally:
            self._open.remove(queue)
        return response


def event(type_: str, obj: Json) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def status(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(body, status=code)


@asynccontextmanager
async def a_collection() -> AsyncIterator[tuple[Collection, str]]:
    """Serve a collection on loopback; yield it and its URL."""
    collection = Collection()
    app = web.Application()
    app.router.add_get("/{tail:.*}", collection.handle)
    # A watch ends for the server, too, when its client disconnects.
    async with serving(app, handler_cancellation=True) as port:
        try:
            yield collection, f"http://127.0.0.1:{port}"
        finally:
            collection.cut()
