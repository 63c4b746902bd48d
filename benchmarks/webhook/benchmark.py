"""The cost of a mutating call, compared with a bare aiohttp handler that echoes the body.

Calls go to both in turn, in short blocks, because other load on the machine affects both; of many
blocks and several processes the median counts. The ratio of CPU times is the steadiest on a busy
machine.

Four rows: reviews of pods that are alike, as those of one workload are; of pods that differ only in
what admission does not read; of pods that each ask for another share; and reviews of random kinds
and sizes, none of which is sent twice.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure, percentile
from benchmarks.fixtures.http_caller import Caller, connects, request_bytes
from benchmarks.fixtures.live_webhook import LiveWebhook, LiveWebhooks, live_webhooks
from benchmarks.fixtures.reviews import (
    a_review,
    mixed_reviews,
    other_settings_reviews,
    unlike_reviews,
)
from benchmarks.webhook.comparison import Block, figures_of
from certs.authority import make_serving
from process.clock import SystemClock
from simulator.envtest.ports import free_ports

_ROUNDS: Final = 3  # each with processes of its own: where their memory lies matters

_BLOCKS: Final = 12  # of each kind in one round

_CALLS: Final = 200  # to each server in one block

_WARM_UP: Final = 200

_CALLERS: Final = 8

_CROWD_S: Final = 4.0

_ECHO_LIMIT_S: Final = 10.0

_SEED: Final = 20261122


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    yield from asyncio.run(_measured())


async def _measured() -> Sequence[Figure]:
    body = json.dumps(a_review()).encode()
    request = request_bytes("/mutate", body)
    # None of these comes twice in a round: what the webhook remembers must not be of before.
    many = _WARM_UP + _BLOCKS * _CALLS
    rows = {
        "mutate": ("alike", [request]),
        "settings": (
            "of pods with other settings each",
            [request_bytes("/mutate", each) for each in other_settings_reviews(many)],
        ),
        "unlike": (
            "of another share each",
            [request_bytes("/mutate", each) for each in unlike_reviews(many)],
        ),
        "mixed": (
            "of random kinds",
            [request_bytes(*each) for each in mixed_reviews(many, seed=_SEED)],
        ),
    }
    blocks: dict[str, list[list[Block]]] = {name: [] for name in rows}
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            async with (
                live_webhooks(Path(folder)) as live,
                _echo(live, Path(folder)) as echo,
            ):
                for name, (_, requests) in rows.items():
                    blocks[name].append(await _side_by_side(live, echo, requests))
    found: list[Figure] = []
    for name, (which, _) in rows.items():
        note = (
            f"reviews {which}, one caller, keep-alive TLS; {_ROUNDS} rounds of {_BLOCKS} blocks of "
            f"{_CALLS} calls to each; load average {os.getloadavg()[0]:.1f}"
        )
        found += figures_of(name, blocks[name], note=note)
    with tempfile.TemporaryDirectory() as folder:
        async with live_webhooks(Path(folder), count=2) as live:
            found += await _crowd(live, request)
    return [*found, _figure("body", len(body) / 1024, "KiB", "AdmissionReview of one pod")]


async def _side_by_side(
    live: LiveWebhooks, echo_server: LiveWebhook, requests: Sequence[bytes]
) -> list[Block]:
    """Return the times of *requests*, sent in turn to the webhook and to the echo server."""
    trust, server, to_send = live.trust(), live.webhooks[0], cycle(requests)
    blocks = []
    async with Caller(server.port, trust) as webhook, Caller(echo_server.port, trust) as echo:
        for request in islice(to_send, _WARM_UP):
            await webhook.timed_ms(request)
            await echo.timed_ms(request)
        for number in range(_BLOCKS):
            ours: list[float] = []
            theirs: list[float] = []
            # Whoever comes second finds other things in the processor's caches.
            turns = [(webhook, ours), (echo, theirs)][:: -1 if number % 2 else 1]
            before_s, echo_before_s = server.cpu_s, echo_server.cpu_s
            for request in islice(to_send, _CALLS):
                for caller, times in turns:
                    times.append(await caller.timed_ms(request))
            cpu = (server.cpu_s - before_s) / (echo_server.cpu_s - echo_before_s)
            blocks.append(Block(ours_ms=ours, theirs_ms=theirs, cpu_ratio=cpu))
    return blocks


async def _crowd(live: LiveWebhooks, request: bytes) -> list[Figure]:
    """Return the figures of several callers at once, on the same cores as the processes."""
    trust = live.trust()
    times: list[float] = []
    ends = time.perf_counter() + _CROWD_S

    async def call(port: int) -> None:
        async with Caller(port, trust) as caller:
            while time.perf_counter() < ends:
                times.append(await caller.timed_ms(request))

    async with asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            group.create_task(call(live.webhooks[number % len(live.webhooks)].port))
    note = f"{_CALLERS} callers, {len(live.webhooks)} processes, callers on the same cores"
    return [
        _figure("crowd_rate", len(times) / _CROWD_S, "1/s", note),
        _figure("crowd_p50", percentile(times, 50), "ms", note),
        _figure("crowd_p99", percentile(times, 99), "ms", note),
    ]


@asynccontextmanager
async def _echo(live: LiveWebhooks, folder: Path) -> AsyncIterator[LiveWebhook]:
    (port,) = free_ports(1)
    leaf = make_serving(
        live.ca, names=("127.0.0.1",), now=SystemClock().now(), life=timedelta(hours=1)
    )
    pem = folder / "echo.pem"
    pem.touch(mode=0o600)
    pem.write_bytes(leaf.cert_pem + leaf.key_pem)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.fixtures.echo_server", str(port), str(pem)
    )
    try:
        async with asyncio.timeout(_ECHO_LIMIT_S):
            while not await connects(port):  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.05)
        yield LiveWebhook(port=port, process=process, log=folder / "echo.log")
    finally:
        process.terminate()
        await process.wait()


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=f"webhook.{name}", value=round(value, 3), unit=unit, note=note)
