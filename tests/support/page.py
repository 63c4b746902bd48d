"""The scheduler's page over a small cluster of real parts: cache, board and server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.errors import WireError
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.state.move_object import Move
from fracgpu.state.node_info import read_offered_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.reservation import claims_of
from fracgpu.units import Mib
from kube.errors import NotFound
from kube.informer import Change, ChangeType
from kube.kinds import Kind
from kube.objects import ObjectKey
from process.clock import Clock
from scheduler.cache.event_handlers import decode_any_pod
from scheduler.core import SchedulerCore
from scheduler.page.board import Board, PageFacts
from scheduler.page.explainer import Explainer
from scheduler.page.filter_answers import FilterAnswers
from scheduler.page.server import PageServer
from simulator.background import background
from tests.fakes.clock import VirtualClock
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards

_EVENT: Final = re.compile(r"(?:id: (?P<id>\S+)\n)?(?:event: (?P<kind>\w+)\n)?data: (?P<data>.*)")


class PodShelf:
    """The part of the API server that an explanation asks: one pod by name."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.gets = 0
        self.held: asyncio.Event | None = None

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        self.gets += 1
        if self.held is not None:
            await self.held.wait()
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is None:
            raise NotFound(verb="GET", path=name, status=404, reason="NotFound", message=name)
        return json.dumps(pod).encode()


class PageCluster:
    """A cluster whose events reach cache and board as in the running extender."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.strategy = Strategy.PACK
        self.core = SchedulerCore(strategy=lambda: self.strategy, clock=self.clock)
        self.answers = FilterAnswers(self.clock)
        self.facts = PageFacts(leader="replica-a", strategy=Strategy.PACK, hot_ratio=0.8)
        self.board = Board(
            self.core, self.answers, facts=lambda: self.facts, clock=self.clock, epoch="e1"
        )
        self.shelf = PodShelf()
        self.explainer = Explainer(
            self.shelf,
            self.core,
            self.board,
            strategy=lambda: self.strategy,
            clock=self.clock,
        )
        self._nodes: dict[str, Json] = {}

    def node(self, name: str, *, cards: Sequence[Card] | None = None, **notes: str | None) -> None:
        """Add or change a node; *notes* are ``fracgpu.io/`` annotations, ``_`` for ``-``."""
        body = self._nodes.get(name) or a_sharing_node(
            name, cards=some_cards(name) if cards is None else cards
        )
        self._nodes[name] = body
        for word, text in notes.items():
            key = f"{names.PREFIX}{word.replace('_', '-')}"
            if text is None:
                body["metadata"]["annotations"].pop(key, None)
            else:
                body["metadata"]["annotations"][key] = text
        self._tell_node(name, ChangeType.MODIFIED)

    def heat(self, name: str, *ratios: float) -> None:
        """Report how busy the cards of a node are, now."""
        busy = {f"GPU-{name}-{index}": ratio for index, ratio in enumerate(ratios)}
        self.node(name, heat=json.dumps(busy), load_time=self.clock.now().isoformat())

    def drop_node(self, name: str) -> None:
        self._tell_node(name, ChangeType.DELETED)
        del self._nodes[name]

    def _tell_node(self, name: str, what: ChangeType) -> None:
        self.core.handlers.node_changed(
            Change(
                type=what,
                key=ObjectKey("", name),
                uid=name,
                resource_version="1",
                object=read_offered_node(json.dumps(self._nodes[name]).encode()),
            )
        )

    def pod(  # noqa: PLR0913 - one keyword for each independent fact
        self,
        name: str,
        *,
        on: str = "",
        card: int = 0,
        mib: int = 1000,
        limit_mib: int = 0,
        what: ChangeType = ChangeType.MODIFIED,
        meta: Mapping[str, Any] | None = None,
        status: Mapping[str, Any] | None = None,
        **wanted: Any,
    ) -> PodInfo:
        """Add or change a pod: one that waits, or one that holds MiB of a card of the node *on*."""
        body = a_gpu_pod(name, mib=mib, **wanted)
        body["metadata"] |= {"uid": f"uid-{name}", **(meta or {})}
        body["metadata"]["annotations"][names.GRANTED] = "granted"
        body["status"] = status or {}
        if on:
            body["spec"]["nodeName"] = on
            uuid = CardUuid(f"GPU-{on}-{card}")
            assignment = {"train": (Slice(card=uuid, mib=Mib(mib), own_limit_mib=Mib(limit_mib)),)}
            body["metadata"]["annotations"][names.ASSIGNMENT] = write_assignment(assignment)
        self.shelf.pods[f"{body['metadata']['namespace']}/{name}"] = body
        raw = json.dumps(body).encode()
        change = Change(
            type=what,
            key=ObjectKey(body["metadata"]["namespace"], name),
            uid=body["metadata"]["uid"],
            resource_version="1",
            object=decode_any_pod(raw),
        )
        self.core.handlers.pod_changed(change)
        self.board.pod_changed(change)
        return decode_pod_info(raw)

    def move(self, move: Move, *, gone: bool = False) -> None:
        what = ChangeType.DELETED if gone else ChangeType.MODIFIED
        key = ObjectKey("", move.name)
        change = Change(type=what, key=key, uid=move.name, resource_version="1", object=move)
        self.core.handlers.move_changed(
            Change(
                type=what,
                key=key,
                uid=move.name,
                resource_version="1",
                object=claims_of(move),
            )
        )
        self.board.move_changed(change)

    async def advance(self, duration_s: float) -> None:
        """Let time pass on a virtual clock."""
        assert isinstance(self.clock, VirtualClock)
        await self.clock.advance(duration_s)

    def document(self, key: str) -> Any:
        """Return a document of the board as a browser sees it, or None."""
        found = {piece.key: piece.body for piece in self.board.pieces.since(0, most_bytes=10**9)}
        return None if found.get(key) is None else json.loads(found[key] or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    id: str
    kind: str
    data: Any


class Served:
    """A page on loopback, and a client of it."""

    def __init__(
        self, cluster: PageCluster, http: aiohttp.ClientSession, server: PageServer
    ) -> None:
        self.cluster = cluster
        self.http = http
        self.server = server
        self.port = server.port
        self.url = f"http://127.0.0.1:{server.port}"

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str]:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, f"{self.url}{path}", headers=shown) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def events(self, path: str = "/events", **headers: str) -> AsyncIterator["EventReader"]:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(f"{self.url}{path}", headers=shown) as answer:
            assert answer.status == 200, await answer.text()
            yield EventReader(answer)


class EventReader:
    """Reads server-sent events from an answer."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> Event:
        """Return the next event; what only sets the pause before a retry is skipped."""
        lines: list[str] = []
        async with asyncio.timeout(20):
            while True:
                line = (await self.answer.content.readline()).decode()
                if not line:
                    raise WireError(what="stream", message="it ended")
                if line != "\n":
                    lines.append(line)
                    continue
                found = _EVENT.match("".join(lines))
                lines = []
                if found is not None:
                    data = json.loads(found["data"])
                    return Event(id=found["id"] or "", kind=found["kind"], data=data)

    async def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return the events up to the first that is wanted."""
        found = [await self.next()]
        while not wanted(found[-1]):
            found.append(await self.next())
        return found


@asynccontextmanager
async def serving(
    cluster: PageCluster,
    *,
    why_not: Callable[[], str | None] = lambda: None,
    beat_s: float = 10.0,
    write_limit_s: float = 10.0,
    port: int = 0,
) -> AsyncIterator[Served]:
    """Serve the page of a cluster on loopback while the block runs."""
    server = PageServer(
        cluster.board,
        cluster.explainer,
        why_not=why_not,
        clock=cluster.clock,
        port=port,
        beat_s=beat_s,
        write_limit_s=write_limit_s,
    )
    async with background(cluster.board.run()), aiohttp.ClientSession() as http:
        await server.start()
        try:
            yield Served(cluster, http, server)
        finally:
            await http.close()
            await server.stop(2.0)
