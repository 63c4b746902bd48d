"""How long the extender takes from its start until it answers, in large clusters.

The stand-in for the API server writes every page anew and shares the cores, so CPU time is what to
compare; a new leader reads the same lists, in a process that runs already.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from benchmarks.fixtures.canned_api import CARDS, PENDING
from benchmarks.fixtures.live_extender import live_extender
from benchmarks.resources.shipped_roles import cpu_s

SLOW: Final = True  # minutes, and one GiB for each cluster

SIZES: Final = ((5_000, 20), (10_000, 10))


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    for nodes, pods_per_node in SIZES:
        yield from asyncio.run(started(nodes=nodes, pods_per_node=pods_per_node))


async def started(*, nodes: int, pods_per_node: int) -> list[Figure]:
    """Return the figures of one size, as of the moment at which the extender is ready."""
    with tempfile.TemporaryDirectory() as folder:
        async with live_extender(Path(folder), nodes=nodes, pods_per_node=pods_per_node) as live:
            used_s = cpu_s(live.process.pid)
            rss_mib, peak_mib = live.rss_mib, live.peak_mib
    note = (
        f"{nodes} nodes of {CARDS} cards, {nodes * pods_per_node} bound and {PENDING} waiting "
        f"pods; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    )
    values = {
        "ready": (live.started_s, "s"),
        "cpu": (used_s, "s"),
        "rss": (rss_mib, "MiB"),
        "peak_rss": (peak_mib, "MiB"),
    }
    size = f"{nodes}_nodes_{pods_per_node}_pods"
    return [
        Figure(name=f"start.{name}_{size}", value=round(value, 2), unit=unit, note=note)
        for name, (value, unit) in values.items()
    ]
