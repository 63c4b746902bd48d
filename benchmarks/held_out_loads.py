"""Judges the rebalancer on loads that it was not tuned to, beside doing nothing and an oracle.

``make bench-loads`` runs it. The cards, the pods and the oracle are those of the judge, a folder
that is no part of this repository; the loads are here. A rebalancer that is switched on must lose
no more on any of them than doing nothing does.
"""

import argparse
import copy
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.judged_rebalancer import Policy

_Load = NDArray[np.float64]
_Rng = np.random.Generator
_Length = Callable[[], float]  # in minutes

_TICK_MIN: Final = 57 / 60
_TICKS: Final = 1441  # a day
_WORSE_H: Final = 0.1  # card-hours a day


def on_and_off(rng: _Rng, on: _Length, off: _Length, high: float, low: float) -> _Load:
    """Busy and idle in turn, for times that are drawn."""
    load, tick, busy = np.zeros(_TICKS), 0, bool(rng.random() < 0.4)  # noqa: PLR2004
    while tick < _TICKS:
        ticks = max(2, round((on() if busy else off()) / _TICK_MIN))
        load[tick : tick + ticks] = high if busy else low
        tick, busy = tick + ticks, not busy
    return load


def heavy_tailed(exponent: float, on: float, off: float) -> Callable[[_Rng], _Load]:
    """On and off for times of a Pareto distribution: most are near the least, some last long."""

    def load(rng: _Rng) -> _Load:
        on_min, off_min = (
            lambda least=least: float((rng.pareto(exponent) + 1) * least) for least in (on, off)
        )
        return on_and_off(rng, on_min, off_min, 0.4, 0.05)

    return load


def exponential(rng: _Rng, on: float = 70, off: float = 100, high: float = 0.4) -> _Load:
    """On and off for times without memory."""
    return on_and_off(rng, lambda: rng.exponential(on), lambda: rng.exponential(off), high, 0.05)


def walk(rng: _Rng) -> _Load:
    """A random walk between 0 and 60 %, a step every ten ticks."""
    steps = rng.uniform(0.05, 0.5) + np.cumsum(rng.normal(0, 0.04, _TICKS // 10 + 1))
    folded = np.abs((steps + 0.6) % 1.2 - 0.6)
    return np.repeat(folded, 10)[:_TICKS]


def levels(rng: _Rng) -> _Load:
    """One of three levels, for exponential times."""
    load, tick, level = np.zeros(_TICKS), 0, int(rng.integers(3))
    while tick < _TICKS:
        ticks = max(2, round(rng.exponential(60) / _TICK_MIN))
        load[tick : tick + ticks] = (0.03, 0.2, 0.42)[level]
        tick, level = tick + ticks, (level + int(rng.integers(1, 3))) % 3
    return load


def steady_then_random(rng: _Rng) -> _Load:
    """Steady until about noon, from then on like nothing before."""
    load, later = np.full(_TICKS, rng.uniform(0.05, 0.45)), exponential(rng, 60, 60, 0.42)
    change = int(rng.uniform(0.4, 0.6) * _TICKS)
    load[change:] = later[change:]
    return load


def bursts(rng: _Rng) -> _Load:
    """Bursts whose lengths follow Zipf's law: most are over at once, a few last for hours."""
    return on_and_off(
        rng, lambda: min(600.0, 4.0 * rng.zipf(1.8)), lambda: rng.exponential(45), 0.42, 0.04
    )


def _alone(load: Callable[[_Rng], _Load], *, cards: int, per: int) -> Callable[[Any, _Rng], Any]:
    def made(robust: Any, rng: _Rng) -> Any:
        pods = [robust.Pod(card, load(rng)) for card in range(cards) for _ in range(per)]
        return robust.scenario(pods, rng, cards=cards, sizes=(6144, 8192))

    return made


def shared(robust: Any, rng: _Rng) -> Any:
    """Deployments whose replicas share one load, in shares that wander."""
    cards, deployments, replicas = 30, 20, 6
    places = iter(rng.permutation(np.arange(deployments * replicas) % cards))
    pods = []
    for number in range(deployments):
        load = exponential(rng, 50, 90, 0.42)
        for _ in range(replicas):
            part = np.repeat(rng.uniform(0.7, 1.3, _TICKS // 60 + 1), 60)[:_TICKS]
            pods.append(robust.Pod(next(places), load * part, f"deployment-{number}", replicas))
    return robust.scenario(pods, rng, cards=cards)


LOADS: Final[dict[str, Callable[[Any, _Rng], Any]]] = {
    "pareto-1.2": _alone(heavy_tailed(1.2, 10, 14), cards=24, per=4),
    "pareto-1.6": _alone(heavy_tailed(1.6, 25, 35), cards=24, per=4),
    "pareto-2.5": _alone(heavy_tailed(2.5, 42, 60), cards=24, per=4),
    "exponential": _alone(exponential, cards=24, per=4),
    "walks": _alone(walk, cards=30, per=3),
    "levels": _alone(levels, cards=30, per=4),
    "regime": _alone(steady_then_random, cards=30, per=3),
    "bursts": _alone(bursts, cards=24, per=4),
    "shared": shared,
}


def judge(folder: Path, names: Iterable[str], seeds: Iterable[int]) -> int:
    """Print a line for each load and seed; return how many lost more than by doing nothing."""
    sys.path.insert(0, str(folder))
    world, robust, baselines = map(importlib.import_module, ("world", "robust", "baselines"))
    worse = 0
    _write("| load | seed | nothing h | rebalancer h | oracle h | moves/h |")
    _write("|---|---|---|---|---|---|")
    for name in names:
        for seed in seeds:
            fresh = LOADS[name](robust, np.random.default_rng([seed, *name.encode()]))
            best = baselines.oracle(copy.deepcopy(fresh))
            nothing, oracle = (
                world.Judge(one, baselines.Nothing()).run() for one in (copy.deepcopy(fresh), best)
            )
            ours = world.Judge(fresh, Policy()).run()
            lost = [f"{result['lost_h']:.2f}" for result in (nothing, ours, oracle)]
            _write(f"| {name} | {seed} | {' | '.join(lost)} | {ours['evictions_per_h']:.2f} |")
            worse += ours["lost_h"] > nothing["lost_h"] + _WORSE_H
    return worse


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Judge the loads that were named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judge", type=Path, help="its folder")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=LOADS)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    worse = judge(args.judge, args.loads, range(args.seeds))
    _write(f"{worse} lost over {_WORSE_H} h more than by doing nothing")


if __name__ == "__main__":
    main()
