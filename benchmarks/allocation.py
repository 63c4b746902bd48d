"""How much of a production fleet is allocated once its whole capacity has been requested.

The placement referee replays the openb trace and calls the extender's own code, through
`benchmarks.referee`. Its folder and the trace's are expected in ``../shared`` beside the
repository, or in ``FRACGPU_SHARED``. ``make bench BENCH=allocation`` runs all cases
that the documentation quotes;

    python -m benchmarks.allocation --trace default --named 33 --seeds 42 43 44

runs a part of it, and with ``--policy fgd firstfit`` the referee's own policies.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.named_models import write_named

SLOW: Final = True

_HERE: Final = Path(__file__).resolve().parents[1]
_OURS: Final = "benchmarks.referee:Policy"
_FULL_LOAD: Final = 100
_SEEDS: Final = (42, 43, 44)
_LIMIT_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trace, the percentage of its pods that name card models, and a policy."""

    trace: str = "default"
    named_percent: int = 0
    policy: str = _OURS

    @property
    def name(self) -> str:
        parts = [self.trace]
        if self.named_percent:
            parts.append(f"named{self.named_percent}")
        if self.policy != _OURS:
            parts.append(self.policy.rpartition(":")[2].lower())
        return "_".join(parts)


DOCUMENTED_CASES: Final = (
    *(
        Case(trace=trace)
        for trace in ("default", "gpushare60", "multigpu30", "gpuspec20", "cpu100")
    ),
    *(Case(named_percent=percent) for percent in (10, 33, 50)),
    *(Case(named_percent=33, policy=policy) for policy in ("firstfit", "fgd")),
    Case(policy="benchmarks.referee:DefaultCpu"),
    Case(policy="benchmarks.referee_protocol:Policy"),
    Case(policy="benchmarks.referee_protocol:Sampled"),
)


def shared() -> Path:
    """Return the folder of the referee and the trace."""
    return Path(os.environ.get("FRACGPU_SHARED", _HERE.parent / "shared"))


def figures() -> Iterator[Figure]:
    """Measure every case that the documentation quotes."""
    for case in DOCUMENTED_CASES:
        yield from measure(case, _SEEDS)


def measure(case: Case, seeds: Sequence[int]) -> Iterator[Figure]:
    """Replay one case with each seed; yield the mean over them."""
    if not (shared() / "referee").is_dir():
        sys.stderr.write(f"bench: no placement referee in {shared()}; nothing measured\n")
        return
    runs = [_run(case, seed) for seed in seeds]
    at_full = [float(run["alloc"][_FULL_LOAD]) for run in runs]
    declined = sum(int(run["declined_though_feasible"]) for run in runs)
    load = os.getloadavg()[0]
    note = (
        f"seeds {', '.join(map(str, seeds))}; lowest {min(at_full):.2f}; {declined} pods declined "
        f"that would have fitted; load average {load:.1f}"
    )
    name = f"allocation.{case.name}"
    yield Figure(name=f"{name}.at_full_load", value=round(mean(at_full), 2), unit="%", note=note)
    for place, what in ((0, "p50"), (2, "p99")):
        took_ms = mean(float(run["place_us"][place]) for run in runs) / 1000
        yield Figure(
            name=f"{name}.decision_{what}",
            value=round(took_ms, 2),
            unit="ms",
            note=f"wall time, conversions included; load average {load:.1f}",
        )


def _run(case: Case, seed: int) -> dict[str, Any]:
    """Run the referee once, in its own process, because it reads its paths at import."""
    with tempfile.TemporaryDirectory() as folder:
        traces = shared() / "openb"
        if case.named_percent:
            write_named(traces, Path(folder), trace=case.trace, percent=case.named_percent)
            traces = Path(folder)
        out = Path(folder) / "results"
        path = os.pathsep.join((str(shared() / "referee"), str(_HERE)))
        options = ("--trace", case.trace, "--seed", str(seed), "--out", str(out))
        subprocess.run(  # noqa: S603 - no argument comes from outside
            [sys.executable, "-m", "openb_bench.referee", case.policy, *options],
            env={**os.environ, "PYTHONPATH": path, "OPENB_CSV": str(traces)},
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        )
        (result,) = out.glob("*.json")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def main(argv: Sequence[str]) -> int:
    """Measure the cases that *argv* names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocation", description=__doc__)
    parser.add_argument("--trace", nargs="+", default=["default"])
    parser.add_argument(
        "--named", nargs="+", type=int, default=[0], help="percentage of the pods that name models"
    )
    parser.add_argument("--policy", nargs="+", default=[_OURS])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(_SEEDS))
    options = parser.parse_args(argv)
    for trace in options.trace:
        for named in options.named:
            for policy in options.policy:
                case = Case(trace=trace, named_percent=named, policy=policy)
                for figure in measure(case, options.seeds):
                    sys.stdout.write(figure.line() + "\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
