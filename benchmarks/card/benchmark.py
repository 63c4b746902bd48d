"""A physical card: what reading it costs, and what the driver says of two programs of known use.

The programs keep a card of their own busy for a quarter and for three quarters of the time, in
spells of random length: side by side, then as clients of one MPS daemon. Beside what each of them
did stands what NVML says of it, as the node agent reads it. Without a card or a C compiler it only
says what it needs.
"""

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.card.cuda_load import Load, NoCompilerError, Running, build, using
from benchmarks.card.physical_cards import NoPhysicalCardError, shareable_uuids
from benchmarks.figure import Figure
from deviceplugin.cards.interface import CardSample
from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.container.mps import MpsOfNode
from deviceplugin.container.mps_daemons import MpsDaemons
from fracgpu.cards.card import CardUuid
from process.clock import SystemClock

SLOW: Final = True  # two minutes, and it needs a card

_QUARTER: Final = Load(mib=1000, busy_ms=15, idle_ms=45)
_THREE_QUARTERS: Final = Load(mib=2000, busy_ms=45, idle_ms=15)
_PERIOD_S: Final = 5.0  # as the agent reads, unless it is told otherwise
_READINGS: Final = 8
_MPS: Final = "nvidia-cuda-mps-control"
_MPS_LIMIT_S: Final = 300.0
_MPS_POLL_S: Final = 0.2
_MS: Final = 1000.0


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    with tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as folder:
        try:
            card = CardUuid(shareable_uuids()[0])
            program = build(Path(folder))
        except (NoPhysicalCardError, NoCompilerError) as error:
            sys.stderr.write(f"bench: card: {error}; not measured\n")
            return
        yield from asyncio.run(_measured(card, program, Path(folder)))


async def _measured(card: CardUuid, program: Path, folder: Path) -> Sequence[Figure]:
    reader = NvmlReader()
    began_s = time.perf_counter()
    cards = await reader.list_cards()
    first_s = time.perf_counter() - began_s
    model = next(found.card.model for found in cards.cards if found.card.uuid == card)
    note = f"{model}, driver {cards.driver}"
    found = [Figure(name="card.first_listing", value=first_s * _MS, unit="ms", note=note)]
    plain = {**os.environ, "CUDA_VISIBLE_DEVICES": card}
    try:
        found += await _two(reader, card, program, plain, name="card", note=note)
        if shutil.which(_MPS) is None:
            sys.stderr.write(f"bench: card: no {_MPS}; MPS is not measured\n")
            return found
        async with _mps(card, folder) as env:
            found += await _two(reader, card, program, env, name="card.mps", note=f"{note}, MPS")
    finally:
        await reader.close()
    return found


async def _two(
    reader: NvmlReader,
    card: CardUuid,
    program: Path,
    env: Mapping[str, str],
    *,
    name: str,
    note: str,
) -> Sequence[Figure]:
    """Measure the two programs side by side."""
    async with (
        using(program, _QUARTER, env=env) as quarter,
        using(program, _THREE_QUARTERS, env=env) as rest,
    ):
        await reader.read()
        samples: list[CardSample] = []
        walls: list[float] = []
        cpus: list[float] = []
        for _ in range(_READINGS):
            await asyncio.sleep(_PERIOD_S)  # what is measured is the time in between
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            samples.append((await reader.read()).samples[card])
            walls.append(time.perf_counter() - wall_s)
            cpus.append(time.process_time() - cpu_s)
        did = [await running.end() for running in (quarter, rest)]
    worked = [100 * done["card_seconds"] / done["seconds"] for done in did]
    values = {
        "reading_p50": (statistics.median(walls) * _MS, "ms"),
        "reading_cpu_p50": (statistics.median(cpus) * _MS, "ms"),
        "quarter_did": (worked[0], "%"),
        "quarter_told": (_reported(samples, quarter), "%"),
        "three_quarters_did": (worked[1], "%"),
        "three_quarters_told": (_reported(samples, rest), "%"),
        "told_of_others": (_reported_of_others(samples, {quarter.pid, rest.pid}), "%"),
        "utilization": (_mean([each.figures.gpu_percent for each in samples]), "%"),
        "gr_engine_active": (100 * _mean([each.figures.gr_engine_ratio for each in samples]), "%"),
        "sm_active": (100 * _mean([each.figures.sm_active_ratio for each in samples]), "%"),
        "memory_of_no_process": (_rest_mib(samples[-1]), "MiB"),
    }
    return [
        Figure(name=f"{name}.{what}", value=round(value, 2), unit=unit, note=note)
        for what, (value, unit) in values.items()
    ]


@asynccontextmanager
async def _mps(card: CardUuid, folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Run the card's MPS daemon as its pod does; yield a client's environment."""
    clock = SystemClock()
    daemons = MpsDaemons(folder, cards=lambda: [card], program=_MPS, clock=clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(daemons.run(), name="mps")
        async with asyncio.timeout(_MPS_LIMIT_S):
            while daemons.problem is not None:
                await clock.sleep(_MPS_POLL_S)
        folders = MpsOfNode(folder).folders(card)
        yield {
            **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
            "CUDA_MPS_PIPE_DIRECTORY": folders.pipe,
            "CUDA_MPS_LOG_DIRECTORY": folders.log,
        }
        running.cancel()


def _reported(samples: Sequence[CardSample], running: Running) -> float:
    """Return what NVML says of a program, on average; 0 where it says nothing."""
    return _mean([_sum_of(sample, {running.pid}) for sample in samples])


def _reported_of_others(samples: Sequence[CardSample], pids: set[int]) -> float:
    """Return what NVML says of all processes but *pids*, on average."""
    everybody = [{process.pid for process in sample.processes} for sample in samples]
    return _mean(
        [_sum_of(sample, all_ - pids) for sample, all_ in zip(samples, everybody, strict=True)]
    )


def _sum_of(sample: CardSample, pids: set[int]) -> float:
    return sum(process.sm_percent or 0 for process in sample.processes if process.pid in pids)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else 0.0


def _rest_mib(sample: CardSample) -> float:
    held = sum(process.used_mib or 0 for process in sample.processes)
    return (sample.figures.used_mib or 0) - held
