"""Filter, prioritize, preempt and bind of the real extender, compared with a bare server.

Calls to both alternate in one run, because other load on the machine affects both: the ratio
counts, and of several runs the median.

In this cluster all nodes and all pods are equal. Of one where none is, see `mixed`.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.extender import mixed
from benchmarks.figure import Figure, percentile
from benchmarks.fixtures.canned_api import PENDING, a_pending_pod, node_name
from benchmarks.fixtures.http_caller import Caller, request_bytes
from benchmarks.fixtures.live_extender import LiveExtender, live_extender

_SIZES: Final = (1_000, 5_000)
_PODS_PER_NODE: Final = 20
_RUNS: Final = 5
_CALLS: Final = 200
_WARM_UP: Final = 20
_BODIES: Final = 25
_BINDERS: Final = 8
# kube-scheduler 1.30 to 1.36 by default: numFeasibleNodesToFind of 1,000 nodes.
_SAMPLE_OF_1000: Final = 420
# As many as kube-scheduler names by default on 5,000 nodes: a tenth of them.
_PREEMPTABLE: Final = 500


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    yield _figure("load_average", os.getloadavg()[0], "processes", "before measuring; 2 cores")
    for nodes in _SIZES:
        yield from asyncio.run(_measured(nodes))
    yield from mixed.figures()


async def _measured(nodes: int) -> Sequence[Figure]:
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        async with live_extender(Path(folder), nodes=nodes, pods_per_node=_PODS_PER_NODE) as live:
            note = f"{nodes * _PODS_PER_NODE} bound and {PENDING} waiting pods"
            found += [
                _figure(f"start_{nodes}_nodes", live.started_s, "s", note),
                _figure(f"rss_{nodes}_nodes", live.rss_mib, "MiB", note),
                _figure(f"peak_rss_{nodes}_nodes", live.peak_mib, "MiB", note),
            ]
            found += [figure async for figure in _verbs(live, nodes, named=nodes)]
            if nodes == _SIZES[0]:
                found += [figure async for figure in _verbs(live, nodes, named=_SAMPLE_OF_1000)]
                found += await _preempt(live)
                found.append(await _bind_rate(live, nodes))
            found.append(_figure(f"rss_after_{nodes}_nodes", live.rss_mib, "MiB", note))
    return found


async def _verbs(live: LiveExtender, nodes: int, *, named: int) -> AsyncIterator[Figure]:
    bodies = [_body(nodes, named, turn) for turn in range(_BODIES)]
    label = f"{nodes}_nodes" if named == nodes else f"{named}_of_{nodes}_nodes"
    for verb in ("filter", "prioritize"):
        requests = [request_bytes(f"/{verb}", body) for body in bodies]
        runs = await _side_by_side(live, requests)
        note = f"keep-alive TLS, names rotated; median of {_RUNS} runs of {_CALLS} calls"
        for share in (50, 99):
            ours = statistics.median(percentile(extender_ms, share) for extender_ms, _ in runs)
            bare = statistics.median(percentile(bare_ms, share) for _, bare_ms in runs)
            yield _figure(f"{verb}_{label}_p{share}", ours, "ms", note)
            yield _figure(f"bare_{verb}_{label}_p{share}", bare, "ms", note)
        ratio = statistics.median(
            percentile(extender_ms, 50) / percentile(bare_ms, 50) for extender_ms, bare_ms in runs
        )
        yield _figure(f"{verb}_to_bare_{label}", ratio, "ratio", f"p50 to p50; {note}")


async def _side_by_side(
    live: LiveExtender, requests: Sequence[bytes]
) -> Sequence[tuple[list[float], list[float]]]:
    runs: list[tuple[list[float], list[float]]] = []
    async with Caller(live.port, live.trust) as ours, Caller(live.bare_port, live.trust) as bare:
        for request in requests[:_WARM_UP]:
            await ours.timed_ms(request)
            await bare.timed_ms(request)
        for _ in range(_RUNS):
            mine: list[float] = []
            theirs: list[float] = []
            for call in range(_CALLS):
                request = requests[call % len(requests)]
                mine.append(await ours.timed_ms(request))
                theirs.append(await bare.timed_ms(request))
            runs.append((mine, theirs))
    return runs


async def _preempt(live: LiveExtender) -> Sequence[Figure]:
    """Return how long preempt takes, and how long another request waits meanwhile."""
    bodies = [_preempt_body(turn) for turn in range(_RUNS)]
    requests = [request_bytes("/preempt", body) for body in bodies]
    small = request_bytes("/filter", _body(1, 1, 0))
    took_ms: list[float] = []
    waited_ms: list[float] = []

    async def ask() -> None:
        async with Caller(live.port, live.trust) as caller:
            took_ms.extend([await caller.timed_ms(request) for request in requests])

    async with Caller(live.port, live.trust) as other, asyncio.TaskGroup() as group:
        await other.timed_ms(small)
        asking = group.create_task(ask())
        while not asking.done():
            waited_ms.append(await other.timed_ms(small))
    note = f"{_PREEMPTABLE} nodes named, {_PODS_PER_NODE} pods each; keep-alive TLS"
    return (
        _figure(f"preempt_{_PREEMPTABLE}_nodes_p50", statistics.median(took_ms), "ms", note),
        _figure(
            f"preempt_{_PREEMPTABLE}_nodes_others_p50", statistics.median(waited_ms), "ms", note
        ),
        _figure(f"preempt_{_PREEMPTABLE}_nodes_others_max", max(waited_ms), "ms", note),
    )


def _preempt_body(turn: int) -> bytes:
    """Return what kube-scheduler sends for a pod for which two others have to leave a card."""
    pod = {"kind": "Pod", "apiVersion": "v1", **a_pending_pod(turn, mib=76_000)}
    pod["spec"]["priority"] = 10
    nodes: dict[str, Any] = {node_name(number): {"Pods": []} for number in range(_PREEMPTABLE)}
    args = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
    return json.dumps(args).encode()


async def _bind_rate(live: LiveExtender, nodes: int) -> Figure:
    """Return the binds per second, several at once as in kube-scheduler."""
    numbers = iter(range(PENDING))
    failed: list[str] = []

    async def bind() -> None:
        async with Caller(live.port, live.trust) as caller:
            for number in numbers:
                pod = a_pending_pod(number)["metadata"]
                args = {
                    "PodName": pod["name"],
                    "PodNamespace": pod["namespace"],
                    "PodUID": pod["uid"],
                    "Node": node_name(number % nodes),
                }
                _, answer = await caller.post(request_bytes("/bind", json.dumps(args).encode()))
                if error := json.loads(answer)["Error"]:
                    failed.append(error)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_BINDERS):
            group.create_task(bind())
    took_s = time.perf_counter() - began_s
    if failed:
        raise RuntimeError(f"{len(failed)} Bindings failed, the first: {failed[0]}")
    note = f"{_BINDERS} at once, API server that takes every Binding on the same cores"
    return _figure("binds", PENDING / took_s, "1/s", note)


def _body(nodes: int, named: int, turn: int) -> bytes:
    """Return what kube-scheduler sends; each turn has another pod, and the nodes rotate."""
    start = turn * nodes // _BODIES
    names = [node_name((start + number) % nodes) for number in range(named)]
    pod = {"kind": "Pod", "apiVersion": "v1", **a_pending_pod(turn, mib=4_000 + turn % 4)}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=f"extender.{name}", value=round(value, 3), unit=unit, note=note)
