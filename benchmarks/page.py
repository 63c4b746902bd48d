"""The scheduler's page with 400 and 4,000 cards: what it costs the extender, and the browser.

Cache, board and server are the real ones, in this process; each card has three slices, and 1,000
pods wait. The browser is Chromium, if there is one. How long the event loop was held is CPU time of
its thread between two turns of another task, so that other processes of a busy machine are not in
it.
"""

import asyncio
import json
import os
import resource
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from benchmarks.figure import Figure
from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.cards.card import Card, CardUuid
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.state.node_info import read_node
from fracgpu.units import Mib
from kube.informer import Change, ChangeType
from kube.kinds import Kind
from kube.objects import ObjectKey
from process.clock import SystemClock
from scheduler.cache.event_handlers import decode_any_pod
from scheduler.core import SchedulerCore
from scheduler.page.board import Board, PageFacts
from scheduler.page.explainer import Explainer
from scheduler.page.filter_answers import FilterAnswers
from scheduler.page.server import PageServer
from tools.page.chromium import Tab, find_chromium, open_tab

_CARDS: Final = (400, 4_000)
_CARDS_PER_NODE: Final = 8
_SLICES_PER_CARD: Final = 3
_CARD_MIB: Final = 81_920
_MODEL: Final = "NVIDIA H100 80GB HBM3"
_SLICE_MIB: Final = 20_000
_WAITING: Final = 1_000
_UPDATES: Final = 5
_LIMIT_S: Final = 120.0


class _NoPods:
    """An API server that is not asked."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        raise AssertionError(f"{kind.plural} {namespace}/{name} was read")


class _Cluster:
    """A cluster whose changes reach cache and board as in the extender."""

    def __init__(self, cards: int) -> None:
        clock = SystemClock()
        self.nodes = cards // _CARDS_PER_NODE
        self.core = SchedulerCore(strategy=lambda: Strategy.PACK, clock=clock)
        facts = PageFacts(leader="bench", strategy=Strategy.PACK, hot_ratio=0.8)
        self.board = Board(
            self.core, FilterAnswers(clock), facts=lambda: facts, clock=clock, epoch="bench"
        )
        explainer = Explainer(
            _NoPods(), self.core, self.board, strategy=lambda: Strategy.PACK, clock=clock
        )
        self.server = PageServer(self.board, explainer, why_not=lambda: None, clock=clock, port=0)
        self._clock = clock
        for number in range(_WAITING):
            self._wait(number)
        for node in range(self.nodes):
            self.report(node, busy=0.3)
            for card in range(_CARDS_PER_NODE):
                for number in range(_SLICES_PER_CARD):
                    self._bind(node, card, number)

    def report(self, node: int, *, busy: float) -> None:
        """Let a node's agent report how busy its cards are."""
        name = _node(node)
        cards = tuple(
            Card(
                uuid=_uuid(node, index), index=index, model="NVIDIA H100", total_mib=Mib(_CARD_MIB)
            )
            for index in range(_CARDS_PER_NODE)
        )
        notes = {
            names.NODE_CARDS: write_cards(cards),
            names.NODE_HEAT: json.dumps({card.uuid: busy for card in cards}),
            names.NODE_LOAD_TIME: self._clock.now().isoformat(),
        }
        labels = {names.SHARE_LABEL: "true"}
        body = {"metadata": {"name": name, "labels": labels, "annotations": notes}}
        self.core.handlers.node_changed(
            Change(
                type=ChangeType.MODIFIED,
                key=ObjectKey("", name),
                uid=name,
                resource_version="1",
                object=read_node(json.dumps(body).encode()),
            )
        )

    def _bind(self, node: int, card: int, number: int) -> None:
        name = f"train-{node}-{card}-{number}"
        part = Slice(card=_uuid(node, card), mib=Mib(_SLICE_MIB))
        body: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": "team-a",
                "uid": name,
                "annotations": {names.ASSIGNMENT: write_assignment({"main": (part,)})},
            },
            "spec": {"nodeName": _node(node), "containers": [{"name": "main"}]},
        }
        self._add_pod(name, body)

    def _wait(self, number: int) -> None:
        name = f"waits-{number}"
        limits = {names.GPU_MEM: str(_CARD_MIB), names.GPU_SLOT: "1"}
        container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
        notes = {names.MEMORY: f"{_CARD_MIB}Mi", names.CARDS: "1"}
        metadata = {"name": name, "namespace": "team-a", "uid": name, "annotations": notes}
        self._add_pod(name, {"metadata": metadata, "spec": {"containers": [container]}})

    def _add_pod(self, name: str, body: dict[str, Any]) -> None:
        change = Change(
            type=ChangeType.ADDED,
            key=ObjectKey("team-a", name),
            uid=name,
            resource_version="1",
            object=decode_any_pod(json.dumps(body).encode()),
        )
        self.core.handlers.pod_changed(change)
        self.board.pod_changed(change)


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    yield Figure(
        name="page.load_average",
        value=round(os.getloadavg()[0], 1),
        unit="processes",
        note="before",
    )
    for cards in _CARDS:
        yield from asyncio.run(_measured(cards))


async def _measured(cards: int) -> list[Figure]:
    cluster = _Cluster(cards)
    found = [
        Figure(name=f"page.{name}_{cards}_cards", value=round(value, 2), unit=unit, note=note)
        for name, value, unit, note in await _of_the_extender(cluster)
    ]
    chromium = find_chromium()
    if chromium is not None:
        found += [
            Figure(name=f"page.browser_{name}_{cards}_cards", value=round(value, 2), unit=unit)
            for name, value, unit in await _of_the_browser(cluster, chromium, cards)
        ]
    return found


async def _of_the_extender(cluster: _Cluster) -> list[tuple[str, float, str, str]]:
    first_cpu_ms = await _cpu_ms(cluster.board.refresh)
    quiet_cpu_ms = await _cpu_ms(cluster.board.refresh)
    cluster.report(0, busy=0.5)
    one_cpu_ms = await _cpu_ms(cluster.board.refresh)
    async with _served(cluster) as url, aiohttp.ClientSession(auto_decompress=False) as http:
        held_ms, (sent, plain) = await _held_ms(lambda: _all_events(http, url))
        quiet_held_ms, _ = await _held_ms(cluster.board.refresh)
        for node in range(cluster.nodes):
            cluster.report(node, busy=0.9)
        all_held_ms, _ = await _held_ms(cluster.board.refresh)
    return [
        ("first_pass_cpu", first_cpu_ms, "ms", "every node's document made once"),
        ("quiet_pass_cpu", quiet_cpu_ms, "ms", "nothing changed; once a second while watched"),
        ("one_node_pass_cpu", one_cpu_ms, "ms", "one node reported its heat"),
        ("all_sent", sent / 1024, "KiB", "gzip, to a new browser"),
        ("all_plain", plain / 1024, "KiB", "before gzip"),
        ("loop_held_first", held_ms, "ms", "while a new browser gets everything; want under 20"),
        ("loop_held_all_change", all_held_ms, "ms", "every node reports; want under 20"),
        ("loop_held_quiet", quiet_held_ms, "ms", "nothing changed; want under 20"),
    ]


async def _of_the_browser(
    cluster: _Cluster, chromium: str, cards: int
) -> list[tuple[str, float, str]]:
    tiles = "document.querySelectorAll('.tile').length"
    async with _served(cluster) as url, open_tab(chromium) as tab:
        await tab.resize(1280, 900)
        began_s = time.perf_counter()
        await tab.go(url)
        await tab.wait_for(f"{tiles} > 0", limit_s=_LIMIT_S)
        first_s = time.perf_counter() - began_s
        await tab.wait_for(f"{tiles} === {cards}", limit_s=_LIMIT_S)
        all_s = time.perf_counter() - began_s
        first_script_s = (await tab.metrics())["ScriptDuration"]
        one_ms = await _script_ms(cluster, tab, nodes=1)
        every_ms = await _script_ms(cluster, tab, nodes=cluster.nodes)
        heap_mib = (await tab.metrics())["JSHeapUsedSize"] / 2**20
    return [
        ("first_tile", first_s, "s"),
        ("all_tiles", all_s, "s"),
        ("first_script", first_script_s * 1000, "ms"),
        ("script_per_update_of_one_node", one_ms, "ms"),
        ("script_per_update_of_all_nodes", every_ms, "ms"),
        ("heap", heap_mib, "MiB"),
    ]


async def _script_ms(cluster: _Cluster, tab: Tab, *, nodes: int) -> float:
    """Return the browser's time in scripts for one update of so many nodes."""
    before_s = (await tab.metrics())["ScriptDuration"]
    for turn in range(_UPDATES):
        busy = 0.1 + 0.01 * turn
        for node in range(nodes):
            cluster.report(node, busy=busy)
        shown = f"{round(100 * busy)} %"
        last = _uuid(nodes - 1, 0)
        text = f"document.querySelector('[data-uuid=\"{last}\"] .heat').textContent"
        await tab.wait_for(f"{text} === '{shown}'", limit_s=_LIMIT_S)
    return ((await tab.metrics())["ScriptDuration"] - before_s) * 1000 / _UPDATES


@asynccontextmanager
async def _served(cluster: _Cluster) -> AsyncIterator[str]:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.board.run(), name="board")
        await cluster.server.start()
        try:
            yield f"http://127.0.0.1:{cluster.server.port}/"
        finally:
            await cluster.server.stop(1.0)
            running.cancel()


async def _all_events(http: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    """Return the bytes that a new browser gets, and how many they are before gzip."""
    sent, plain, unzip, tail = 0, 0, zlib.decompressobj(31), b""
    async with http.get(f"{url}events", headers={"Accept-Encoding": "gzip"}) as answer:
        while b"event: synced" not in tail:
            chunk = await answer.content.readany()
            text = unzip.decompress(chunk)
            sent, plain, tail = sent + len(chunk), plain + len(text), (tail + text)[-200:]
    return sent, plain


async def _held_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the most CPU time for which *work* held the event loop at once, and its result."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began_s)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        await asyncio.sleep(0)  # the watch begins
        result = await work()
        watching.cancel()
    return longest_s * 1000, result


async def _cpu_ms(work: Callable[[], Any]) -> float:
    began_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    await work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_utime - began_s) * 1000


def _node(number: int) -> str:
    return f"gpu-node-{number}"


def _uuid(node: int, card: int) -> CardUuid:
    return CardUuid(f"GPU-{node:08x}-0000-4000-8000-{card:012x}")
