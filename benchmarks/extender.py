"""Filter, prioritize, bind and preempt of the real extender where every node is different.

Twenty kinds of pods in MiB and CPU on two card models, with cordons, half full
(`benchmarks.fixtures.mixed_api`). Each pod is filtered, scored and bound, as kube-scheduler
does it, so that a node changes between any two questions. Pods of the kinds that run already are
one row, pods that are all unlike each other another.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.figure import Figure, percentile
from benchmarks.fixtures.http_caller import Caller, request_bytes
from benchmarks.fixtures.live_extender import LiveExtender, live_extender
from benchmarks.fixtures.mixed_api import mixed_pending_pod, unseen_pending_pod
from benchmarks.fixtures.objects import a_pending_pod, node_name

_SIZES: Final = (1_000, 5_000)
_PODS_PER_NODE: Final = 20
_CALLS: Final = 400
_BEST: Final = 10
# As many as kube-scheduler names by default on 5,000 nodes: a tenth of them.
_PREEMPTABLE: Final = 500
_PREEMPTED: Final = 5
# Pauses are remembered for one to two minutes; those of the start are not what is measured.
_START_FORGOTTEN_S: Final = 121.0

PodOf = Callable[[int], dict[str, Any]]


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    for nodes in _SIZES:
        yield _figure(
            f"load_average_mixed_{nodes}_nodes", os.getloadavg()[0], "processes", "2 cores"
        )
        yield from asyncio.run(_measured(nodes))


async def _measured(nodes: int) -> Sequence[Figure]:
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        async with live_extender(Path(folder), nodes=nodes, pods_per_node=_PODS_PER_NODE) as live:
            found.append(_figure(f"start_mixed_{nodes}_nodes", live.started_s, "s", ""))
            await asyncio.sleep(_START_FORGOTTEN_S)
            for label, pod_of in (("mixed", mixed_pending_pod), ("unseen", unseen_pending_pod)):
                found += [figure async for figure in _placed(live, nodes, label, pod_of)]
            pause_ms = await live.longest_pause_s() * 1000
            found += [
                _figure(f"longest_pause_mixed_{nodes}_nodes", pause_ms, "ms", "of the event loop"),
                _figure(f"peak_rss_mixed_{nodes}_nodes", live.peak_mib, "MiB", ""),
            ]
            found += await _watched(live, nodes)
            if nodes == _SIZES[0]:
                found.append(await _preempt(live))
    return found


async def _watched(live: LiveExtender, nodes: int) -> Sequence[Figure]:
    """Return what a browser on the page gets, and what it costs while pods are placed."""
    url = f"http://127.0.0.1:{live.page_port}/events"
    sent, tail = 0, b""
    async with aiohttp.ClientSession() as http, http.get(url) as events:
        while b"event: synced" not in tail:
            chunk = await events.content.readany()
            sent, tail = sent + len(chunk), (tail + chunk)[-200:]
        figures = [figure async for figure in _placed(live, nodes, "watched", mixed_pending_pod)]
        pause_ms = await live.longest_pause_s() * 1000
    return [
        *figures,
        _figure(f"page_{nodes}_nodes", sent / 1024, "KiB", "to a new browser, before gzip"),
        _figure(f"longest_pause_watched_{nodes}_nodes", pause_ms, "ms", "want under 20"),
    ]


async def _placed(
    live: LiveExtender, nodes: int, label: str, pod_of: PodOf
) -> AsyncIterator[Figure]:
    took: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
    # Of the listed pods every second one is of a kind that runs already.
    numbers = range(int(pod_of is unseen_pending_pod), 2 * _CALLS, 2)
    first = 2 * _CALLS if label == "watched" else 0
    before_s = live.cpu_s
    async with Caller(live.port, live.trust) as caller:
        for number in numbers:
            await _place(caller, pod_of(number + 2 * first), nodes, took)
    cpu_ms = 1000 * (live.cpu_s - before_s) / _CALLS
    yield _figure(f"cpu_{label}_{nodes}_nodes", cpu_ms, "ms", "of filter, prioritize and bind")
    for verb, times_ms in took.items():
        for share in (50, 99, 100):
            yield _figure(
                f"{verb}_{label}_{nodes}_nodes_p{share}",
                percentile(times_ms, share),
                "ms",
                f"keep-alive TLS, {_CALLS} pods one after the other",
            )


async def _place(
    caller: Caller, pod: dict[str, Any], nodes: int, took: dict[str, list[float]]
) -> None:
    """Filter, score and bind as kube-scheduler does, and note how long each took."""
    names = [node_name(number) for number in range(nodes)]
    asked = {"Pod": {"kind": "Pod", "apiVersion": "v1", **pod}, "Nodes": None}
    passed = await _timed(caller, "filter", {**asked, "NodeNames": names}, took)
    fitting = passed["NodeNames"]
    if not fitting:
        return
    scores = await _timed(caller, "prioritize", {**asked, "NodeNames": fitting}, took)
    best = next(entry["Host"] for entry in scores if entry["Score"] == _BEST)
    meta = pod["metadata"]
    args = {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": best,
    }
    bound = await _timed(caller, "bind", args, took)
    if bound["Error"]:
        raise RuntimeError(f"a Binding failed: {bound['Error']}")


async def _timed(
    caller: Caller, verb: str, body: dict[str, Any], took: dict[str, list[float]]
) -> Any:
    request = request_bytes(f"/{verb}", json.dumps(body).encode())
    began_s = time.perf_counter()
    status, answer = await caller.post(request)
    took[verb].append((time.perf_counter() - began_s) * 1000)
    if status != 200:  # noqa: PLR2004 - HTTP
        raise RuntimeError(f"the server answered {status} to {verb}")
    return json.loads(answer)


async def _preempt(live: LiveExtender) -> Figure:
    """Return how much CPU time preempt takes."""
    before_s = live.cpu_s
    async with Caller(live.port, live.trust) as caller:
        for turn in range(_PREEMPTED):
            await caller.timed_ms(request_bytes("/preempt", _preempt_body(turn)))
    cpu_ms = 1000 * (live.cpu_s - before_s) / _PREEMPTED
    note = f"{_PREEMPTABLE} nodes named, {_PODS_PER_NODE} pods each; keep-alive TLS"
    return _figure(f"preempt_{_PREEMPTABLE}_nodes_cpu", cpu_ms, "ms", note)


def _preempt_body(turn: int) -> bytes:
    """Return what kube-scheduler sends for a pod for which others have to leave a card."""
    pod = {"kind": "Pod", "apiVersion": "v1", **a_pending_pod(turn, mib=76_000)}
    pod["spec"]["priority"] = 10
    nodes: dict[str, Any] = {node_name(number): {"Pods": []} for number in range(_PREEMPTABLE)}
    args = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
    return json.dumps(args).encode()


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=f"extender.{name}", value=round(value, 3), unit=unit, note=note)
