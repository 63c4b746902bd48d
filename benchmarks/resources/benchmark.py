"""Memory and CPU time of each role in a large cluster under steady load.

Each role is a process with the command line of ``deploy/``, as are a real kube-scheduler, etcd and
kube-apiserver. One node has a simulated kubelet and the node agent; the others are only objects.
Every second a number of pods is created, admitted, placed and deleted again; all roles are scraped
every 15 s, and the rebalancer runs its cycles as installed. Requests and limits in ``deploy/`` come
from these figures: docs/figures.md has them.

Without KUBEBUILDER_ASSETS it only says that it needs them.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.live_process import cpu_s, fetch, memory_mib
from benchmarks.fixtures.objects import CARDS
from benchmarks.resources.rig import POD_LABEL, ResourcesRig, open_resources_rig
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import PODS
from simulator.demo.rig import running
from simulator.envtest.control_plane import ASSETS_ENV, find_assets

SLOW: Final = True  # about five minutes for each size

SIZES: Final = (100, 1_000)
PODS_PER_NODE: Final = 20
_RATE: Final = 5.0  # pods created, and as many deleted, every second
_LIFE_S: Final = 20.0
_WARM_UP_S: Final = 30.0
_WINDOW_S: Final = 120.0
_SCRAPE_S: Final = 15.0
_LAST_WORDS: Final = 2_000  # characters of the log of a role that ended
_WANTED_SHARE: Final = 0.9  # of the pods of the load that have to be placed


@dataclass(slots=True)
class _Load:
    """What became of the pods of the load."""

    created: int = 0
    placed: int = 0


def figures() -> Iterator[Figure]:
    """Yield the figures of each size; see ``benchmarks.figure.Benchmark``."""
    value = os.environ.get(ASSETS_ENV)
    if not value:
        sys.stderr.write(f"bench: resources needs {ASSETS_ENV}; not measured\n")
        return
    for nodes in SIZES:
        yield from asyncio.run(measured(find_assets(value), nodes=nodes))


async def measured(
    assets: Path, *, nodes: int, warm_up_s: float = _WARM_UP_S, window_s: float = _WINDOW_S
) -> Sequence[Figure]:
    """Return the figures of one size.

    Raises:
        RuntimeError: the load did not go through, so that the figures would mean nothing.
    """
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        async with (
            open_resources_rig(
                assets, Path(folder), nodes=nodes, pods_per_node=PODS_PER_NODE
            ) as rig,
            _loaded(rig.kube) as load,
            running(*(_scrape(port) for port in rig.telemetry.values())),
        ):
            await asyncio.sleep(warm_up_s)
            before = (load.created, load.placed)
            uses = await _watched(rig, window_s)
            peaks = {name: memory_mib(pid, "VmHWM") for name, pid in rig.pids().items()}
            _check(load, before)
            known = await asyncio.to_thread(_known_cards, rig.telemetry["rebalancer"])
            if known < _WANTED_SHARE * nodes * CARDS:
                raise RuntimeError(f"the rebalancer knows the heat of {known:.0f} cards only")
            rate = (load.created - before[0]) / window_s
    note = (
        f"{nodes} nodes of 8 cards, {nodes * PODS_PER_NODE} pods, {rate:.1f} pods/s created; "
        f"{rig.agent_pods} pods on the agent's node; {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.0f}"
    )
    return [figure for name in peaks for figure in _of(name, nodes, peaks[name], uses[name], note)]


def _of(role: str, nodes: int, peak: float, used: Sequence[float], note: str) -> Iterator[Figure]:
    name = f"resources.{role}_{nodes}_nodes"
    yield Figure(name=f"{name}_memory_peak", value=round(peak, 1), unit="MiB", note=note)
    mean = round(statistics.mean(used), 1)
    yield Figure(name=f"{name}_cpu_mean", value=mean, unit="millicores", note=note)
    busiest = round(max(used))
    yield Figure(name=f"{name}_cpu_busiest_second", value=busiest, unit="millicores", note=note)


async def _watched(rig: ResourcesRig, window_s: float) -> Mapping[str, Sequence[float]]:
    """Return the CPU time of each second of each process, in thousandths of a core.

    Raises:
        RuntimeError: a process ended meanwhile.
    """
    pids = rig.pids()
    uses: dict[str, list[float]] = {name: [] for name in pids}
    ends = time.monotonic() + window_s
    last = {name: (time.monotonic(), cpu_s(pid)) for name, pid in pids.items()}
    while time.monotonic() < ends:
        await asyncio.sleep(1.0)
        for name, pid in pids.items():
            try:
                now, used_s = time.monotonic(), cpu_s(pid)
            except FileNotFoundError:
                log = (rig.logs / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ended: {log[-_LAST_WORDS:]}") from None
            then, before_s = last[name]
            uses[name].append(1000 * (used_s - before_s) / (now - then))
            last[name] = (now, used_s)
    return uses


def _check(load: _Load, before: tuple[int, int]) -> None:
    created, placed = load.created - before[0], load.placed - before[1]
    if placed < _WANTED_SHARE * created or not created:
        raise RuntimeError(f"of {created} pods {placed} were placed; want nearly all of them")


@asynccontextmanager
async def _loaded(kube: KubeClient) -> AsyncIterator[_Load]:
    """Create and delete pods while the block runs."""
    load = _Load()
    async with running(_churn(kube, load)):
        yield load


async def _churn(kube: KubeClient, load: _Load) -> None:
    living: deque[tuple[float, str]] = deque()
    began = time.monotonic()
    for number in range(1_000_000):
        await asyncio.sleep(max(0.0, began + number / _RATE - time.monotonic()))
        name = f"load-{number}"
        await kube.create(PODS, _pod(name), namespace="default")
        load.created += 1
        living.append((time.monotonic(), name))
        while living and time.monotonic() - living[0][0] > _LIFE_S:
            _, oldest = living.popleft()
            pod = await kube.get_object(PODS, oldest, namespace="default")
            load.placed += bool(pod["spec"].get("nodeName"))
            await kube.delete(PODS, oldest, namespace="default", grace_s=0)


def _pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    return {
        "metadata": {
            "name": name,
            "labels": {POD_LABEL: "load"},
            "annotations": {names.FRACTION: "0.1"},
        },
        "spec": {"containers": [container]},
    }


async def _scrape(port: int) -> None:
    """Scrape a role as Prometheus would, until cancelled."""
    while True:
        await asyncio.to_thread(fetch, port, "metrics")
        await asyncio.sleep(_SCRAPE_S)


def _known_cards(port: int) -> float:
    """Return how many cards the rebalancer has a heat for; 0 where it is blind."""
    lines = fetch(port, "metrics").splitlines()
    family = "fracgpu_rebalancer_cards{"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(family))
