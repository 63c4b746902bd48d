"""A replay in which pods leave: who waits, and how much is allocated meanwhile.

Pods arrive as a Poisson stream and leave after their lifetimes. Whoever fits nowhere waits, and is
tried again, the oldest first, on each node that a pod leaves. The fleet starts with a stationary
population, warms up, and is then measured.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place as place_on
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Assignment
from simulator.replay.fleet import FleetState
from simulator.replay.policies import POLICIES, CpuPods, ReplayPolicy
from simulator.replay.workload import ReplayPod, ReplayWorkload, WorkloadError, node_order

_LONGEST_S = 6 * 3600.0  # longer lives are cut, so that the window holds many lives
_WARM_LIVES, _WINDOW_LIVES = 2.0, 3.0  # in mean lifetimes
LATE_S = 600.0  # who waits longer is late

LARGEST = "8 cards"
POD_KINDS = ("share", "1 card", "several cards", LARGEST, "no card")
"""What `kind_of` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Who comes when, and how long each stays; the first are there from the start."""

    pods: Sequence[ReplayPod]
    at_s: Sequence[float]
    life_s: Sequence[float]
    opens_s: float
    closes_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeparturesResult:
    """What one replay measured.

    Attributes:
        arrived: pods of each class that came in the window.
        late: those that had to wait longer than `LATE_S`, or wait still.
    """

    policy: str
    arrived: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    allocated_percent: float


def late_ratio(results: Sequence[DeparturesResult], kind: str) -> float:
    """Return the share of the pods of one class that were late, 0..1; 0 if there were none."""
    arrived = sum(result.arrived[kind] for result in results)
    return sum(result.late[kind] for result in results) / arrived if arrived else 0.0


def kind_of(pod: ReplayPod) -> str:
    """Return a pod's class by its cards."""
    if pod.need is None:
        return "no card"
    (container,) = pod.need.containers
    if container.cards > 1:
        return LARGEST if container.cards == 8 else "several cards"  # noqa: PLR2004
    return "1 card" if pod.demand.share_milli == 1000 else "share"  # noqa: PLR2004


def arrivals(workload: ReplayWorkload, *, load_ratio: float, seed: int) -> Arrivals:
    """Return a stationary stream whose demand (cards times lifetime) is a share of the cards.

    A pod whose lifetime is not known draws one from the pods of its class.

    Raises:
        WorkloadError: no pod has a lifetime.
    """
    rng = np.random.default_rng(seed)
    pods = workload.pods
    lives = _lives(pods, rng)
    need_mib = np.array([pod.mib for pod in pods], np.float64)
    rate = load_ratio * workload.capacity_mib / float((need_mib * lives).mean())
    mean_s = float(lives.mean())
    opens_s, closes_s = _WARM_LIVES * mean_s, (_WARM_LIVES + _WINDOW_LIVES) * mean_s
    # Whoever runs at a random moment was chosen by length of life, and is anywhere in it.
    first = rng.choice(len(pods), rng.poisson(rate * mean_s), p=lives / lives.sum())
    left_s = lives[first] * rng.random(len(first))
    gaps_s = rng.exponential(1 / rate, int(1.1 * rate * (closes_s + LATE_S)) + 100)
    at_s = np.cumsum(gaps_s)
    at_s = at_s[at_s < closes_s + LATE_S]
    later = rng.integers(len(pods), size=len(at_s))
    return Arrivals(
        pods=[pods[number] for number in (*first.tolist(), *later.tolist())],
        at_s=[0.0] * len(first) + at_s.tolist(),
        life_s=left_s.tolist() + lives[later].tolist(),
        opens_s=opens_s,
        closes_s=closes_s,
    )


def replay_departures(
    workload: ReplayWorkload, policy: str, *, seed: int, load_ratio: float
) -> DeparturesResult:
    """Replay a workload once; the same arguments always give the same outcome.

    Raises:
        WorkloadError: no pod has a lifetime.
    """
    stream = arrivals(workload, load_ratio=load_ratio, seed=seed)
    return _Replay(workload, policy, stream, seed=seed).run()


def _lives(pods: Sequence[ReplayPod], rng: np.random.Generator) -> NDArray[np.float64]:
    known: dict[str, list[float]] = {}
    for pod in pods:
        if pod.life_s is not None:
            known.setdefault(kind_of(pod), []).append(min(pod.life_s, _LONGEST_S))
    everyone = [life for lives in known.values() for life in lives]
    if not everyone:
        raise WorkloadError(
            "no pod has a scheduled_time and a deletion_time, so nobody knows when pods leave"
        )
    return np.array(
        [
            min(pod.life_s, _LONGEST_S)
            if pod.life_s is not None
            else float(rng.choice(known.get(kind_of(pod)) or everyone))
            for pod in pods
        ],
        np.float64,
    )


class _Replay:
    """One run: arrivals and departures, in the order of time."""

    def __init__(
        self, workload: ReplayWorkload, policy: str, stream: Arrivals, *, seed: int
    ) -> None:
        self._name = policy
        self._capacity_mib = workload.capacity_mib
        self._stream = stream
        self._state = FleetState(node_order(workload, seed=seed))
        self._policy: ReplayPolicy = POLICIES[policy](self._state, workload, CpuPods.KUBE_SCHEDULER)
        self._running: dict[int, tuple[int, str]] = {}  # place and uid
        self._waiting: list[int] = []
        self._started_s: dict[int, float] = {}
        self._ends: list[tuple[float, int]] = []
        self._area = 0.0

    def run(self) -> DeparturesResult:
        stream, state, now_s = self._stream, self._state, 0.0
        capacity = self._capacity_mib
        for moment_s, number in self._events():
            inside = min(moment_s, stream.closes_s) - max(now_s, stream.opens_s)
            self._area += max(inside, 0.0) * state.used_mib
            now_s = moment_s
            if number in self._running:
                self._leaves(number, now_s)
            else:
                self._arrives(number, now_s)
        return self._result(capacity)

    def _events(self) -> Iterator[tuple[float, int]]:
        """Yield arrivals and departures: who runs, leaves."""
        arrival, stop_s = 0, self._stream.closes_s + LATE_S
        at_s = self._stream.at_s
        while True:
            end_s = self._ends[0][0] if self._ends else np.inf
            next_s = at_s[arrival] if arrival < len(at_s) else np.inf
            if min(end_s, next_s) >= stop_s:
                return
            if end_s <= next_s:
                yield heapq.heappop(self._ends)
            else:
                arrival += 1
                yield next_s, arrival - 1

    def _arrives(self, number: int, now_s: float) -> None:
        if not self._try(number, now_s):
            self._waiting.append(number)

    def _try(self, number: int, now_s: float) -> bool:
        choice = self._policy.choose(self._stream.pods[number])
        if choice is None:
            return False
        self._start(number, choice[0], choice[1], now_s)
        return True

    def _start(self, number: int, place: int, assignment: Assignment, now_s: float) -> None:
        uid = self._state.take(self._stream.pods[number], place, assignment)
        self._policy.update()
        self._running[number] = place, uid
        self._started_s[number] = now_s
        heapq.heappush(self._ends, (now_s + self._stream.life_s[number], number))

    def _leaves(self, number: int, now_s: float) -> None:
        place, uid = self._running.pop(number)
        self._state.release(self._stream.pods[number], place, uid)
        self._policy.update()
        self._retry(place, now_s)

    def _retry(self, place: int, now_s: float) -> None:
        """Try the waiting pods on the one node that has more room than before."""
        hopeless: set[object] = set()
        for number in list(self._waiting):
            pod = self._stream.pods[number]
            if pod.demand in hopeless:
                continue
            if self._fits(pod, place) and self._try(number, now_s):
                self._waiting.remove(number)
            else:
                hopeless.add(pod.demand)

    def _fits(self, pod: ReplayPod, place: int) -> bool:
        state = self._state
        if state.cpu_milli[place] < pod.host.cpu_milli:
            return False
        if state.memory_mib[place] < pod.host.memory_mib:
            return False
        if pod.need is None:
            return True
        answer = place_on(state.node_info(place), pod.need, strategy=Strategy.PACK)
        return isinstance(answer, Placement)

    def _result(self, capacity: int) -> DeparturesResult:
        stream = self._stream
        window_s = stream.closes_s - stream.opens_s
        arrived: Counter[str] = Counter()
        late: Counter[str] = Counter()
        for number, pod in enumerate(stream.pods):
            if not stream.opens_s <= stream.at_s[number] < stream.closes_s:
                continue
            kind = kind_of(pod)
            arrived[kind] += 1
            started_s = self._started_s.get(number, np.inf)
            late[kind] += bool(started_s - stream.at_s[number] > LATE_S)
        return DeparturesResult(
            policy=self._name,
            arrived=arrived,
            late=late,
            allocated_percent=100 * self._area / window_s / capacity,
        )
