"""Two servers compared in short turns, so that neither other load nor luck decides."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.figure import Figure, percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some calls to a server and as many to the one it is compared with, in turn.

    Attributes:
        ours_ms: how long each answer took, in milliseconds.
        theirs_ms: the same of the other server.
        cpu_ratio: the CPU time of the server's process over that of the other's.
    """

    ours_ms: Sequence[float]
    theirs_ms: Sequence[float]
    cpu_ratio: float


def figures_of(name: str, rounds: Sequence[Sequence[Block]], *, note: str) -> Iterator[Figure]:
    """Yield the figures of one row.

    The ratio of medians is the median over all blocks, which are short enough that other load
    affects both servers of most of them. The tail needs more calls: the ratio at the 99th
    percentile is the median over the rounds, each with processes of its own.
    """
    blocks = [block for each in rounds for block in each]
    cpu = statistics.median(block.cpu_ratio for block in blocks)
    yield _figure(f"{name}_to_echo_cpu", cpu, "ratio", note)
    halves = [(percentile(block.ours_ms, 50), percentile(block.theirs_ms, 50)) for block in blocks]
    yield from _row(name, 50, halves, note)
    tails = [
        (
            percentile([ms for block in each for ms in block.ours_ms], 99),
            percentile([ms for block in each for ms in block.theirs_ms], 99),
        )
        for each in rounds
    ]
    yield from _row(name, 99, tails, note)


def _row(
    name: str, share: int, found: Sequence[tuple[float, float]], note: str
) -> Iterator[Figure]:
    ours, theirs = zip(*found, strict=True)
    ratio = statistics.median(mine / other for mine, other in found)
    yield _figure(f"{name}_p{share}", statistics.median(ours), "ms", note)
    yield _figure(f"{name}_echo_p{share}", statistics.median(theirs), "ms", note)
    yield _figure(f"{name}_to_echo_p{share}", ratio, "ratio", note)


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=f"webhook.{name}", value=round(value, 3), unit=unit, note=note)
