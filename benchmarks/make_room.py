"""What moves that make room are worth: pods of the openb trace come, go and wait.

A quarter of the trace's fleet is replayed with departures at 90 % load, with the product's own
placement and its own search for room. ``make bench BENCH=make_room`` runs every case that the
documentation quotes; the trace is expected where `benchmarks.allocation` expects it.

    python -m benchmarks.make_room --policy pack --moves 0 40 --seeds 1 2 3

runs a part of it.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.allocation import shared
from benchmarks.figure import Figure
from simulator.replay.departures import (
    LARGEST,
    DeparturesResult,
    MakeRoomLimits,
    replay_departures,
)
from simulator.replay.workload import ReplayWorkload, read_trace

SLOW: Final = True

_POLICIES: Final = ("pack", "spread", "least-waste")
_MOVES_PER_HOUR: Final = 40
_SEEDS: Final = (1, 2, 3)
_EVERY: Final = 4  # of the nodes; the demand shrinks with them
_LOAD_PERCENT: Final = 90


# What docs/moves.md advises where pods of many cards wait: the settings makeRoomMoves,
# makeRoomAfterS, maxInFlight and maxInFlightPerNode. Without it they have their defaults.
_MANY_CARDS: Final = MakeRoomLimits(most_moves=8, after_s=60.0, in_flight=4, per_node=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A placement policy, how many pods may be moved in an hour, and how.

    Attributes:
        keeps_host: CPU and memory of the node are kept for the waiting pod, as its cards are.
        many_cards: the settings are those for pods of many cards, not the defaults.
    """

    policy: str
    moves_per_hour: int
    load_percent: int = _LOAD_PERCENT
    keeps_host: bool = False
    many_cards: bool = False

    @property
    def name(self) -> str:
        how = (".many_cards" if self.many_cards else "") + (".host_kept" if self.keeps_host else "")
        return f"make_room.{self.policy}.load_{self.load_percent}.moves_{self.moves_per_hour}{how}"

    @property
    def limits(self) -> MakeRoomLimits:
        """What may be moved."""
        limits = _MANY_CARDS if self.many_cards else MakeRoomLimits()
        return replace(limits, moves_per_hour=self.moves_per_hour, keeps_host=self.keeps_host)


def figures() -> Iterator[Figure]:
    """Measure every case that the documentation quotes."""
    for policy in _POLICIES:
        without = Case(policy=policy, moves_per_hour=0)
        some = replace(without, moves_per_hour=_MOVES_PER_HOUR)
        many = replace(some, many_cards=True)
        for case in (without, some, replace(some, keeps_host=True), many):
            yield from measure(case, _SEEDS)
        yield from measure(replace(many, keeps_host=True), _SEEDS)


def measure(case: Case, seeds: Sequence[int], *, every: int = _EVERY) -> Iterator[Figure]:
    """Replay one case with each seed; yield what all of them saw together."""
    if not (shared() / "openb").is_dir():
        sys.stderr.write(f"bench: no openb trace in {shared()}; nothing measured\n")
        return
    workload = openb(every=every)
    yield from summary(
        case.name,
        [
            replay_departures(
                workload,
                case.policy,
                seed=seed,
                load_ratio=case.load_percent / 100,
                limits=case.limits,
            )
            for seed in seeds
        ],
    )


def openb(*, every: int = 1, trace: str = "default") -> ReplayWorkload:
    """Return the trace with each *every*-th of its nodes."""
    folder = shared() / "openb"
    with (
        (folder / "openb_node_list_gpu_node.csv").open() as nodes,
        (folder / f"openb_pod_list_{trace}.csv").open() as pods,
    ):
        workload = read_trace(nodes=nodes, pods=pods)
    return replace(workload, nodes=workload.nodes[::every])


def summary(name: str, results: Sequence[DeparturesResult]) -> Iterator[Figure]:
    """Yield the figures of one case from its runs."""
    hours = sum(result.hours for result in results)
    pods = sum(sum(result.arrived.values()) for result in results)
    largest = sum(result.arrived[LARGEST] for result in results)
    late = sum(result.late[LARGEST] for result in results)
    moves = sum(result.moves for result in results)
    plans = sum(result.plans for result in results)
    helped = sum(result.helped for result in results)
    allocated = sum(result.allocated_percent for result in results) / len(results)
    note = f"{len(results)} seeds, {hours:.1f} h; load average {os.getloadavg()[0]:.1f}"
    rows = (
        ("late_8_cards", 100 * late / max(largest, 1), "%", f"{late} of {largest}; {note}"),
        ("moves_per_h", moves / hours, "1/h", note),
        ("moves_per_arrival", 100 * moves / max(pods, 1), "%", f"{moves} of {pods}; {note}"),
        ("plans_that_helped", float(helped), "", f"of {plans}; {note}"),
        ("allocated", allocated, "%", note),
    )
    for what, value, unit, why in rows:
        yield Figure(name=f"{name}.{what}", value=round(value, 3), unit=unit, note=why)


def main(argv: Sequence[str]) -> int:
    """Measure the cases that *argv* names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_room", description=__doc__)
    parser.add_argument("--policy", nargs="+", default=list(_POLICIES))
    parser.add_argument("--moves", nargs="+", type=int, default=[0, _MOVES_PER_HOUR])
    parser.add_argument("--load", nargs="+", type=int, default=[_LOAD_PERCENT], help="in per cent")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(_SEEDS))
    parser.add_argument("--keep-host", action="store_true", help="keep CPU and memory as well")
    parser.add_argument("--many-cards", action="store_true", help="settings for many cards")
    parser.add_argument("--every", type=int, default=_EVERY, help="take each n-th node")
    options = parser.parse_args(argv)
    for policy in options.policy:
        for load in options.load:
            for moves in options.moves:
                case = Case(
                    policy=policy,
                    moves_per_hour=moves,
                    load_percent=load,
                    keeps_host=options.keep_host,
                    many_cards=options.many_cards,
                )
                for figure in measure(case, options.seeds, every=options.every):
                    sys.stdout.write(figure.line() + "\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
