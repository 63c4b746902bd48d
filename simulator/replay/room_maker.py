"""The rebalancer of a replay: the product's own search for room, and moves that take their time.

While a plan is under way its cards are closed to everybody else; a pod that is moved holds its
source and its target until the move has ended, as in a surge.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable, Flags
from fracgpu.disruption.room.search import MovablePod, PlannedMove, RoomPlan, find_room
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import SCORING
from fracgpu.placement.placement import place as place_on
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment, CardAllocation
from fracgpu.units import Mib
from simulator.replay.fleet import FleetState
from simulator.replay.workload import ReplayPod

_HOUR_S: Final = 3600.0
_COST: Final = 5.0
_COST_PER_MIB: Final = 1 / (10 * 1024)


class Limits(Protocol):
    """How much may be moved; see `simulator.replay.departures.MakeRoomLimits`."""

    @property
    def moves_per_hour(self) -> int: ...
    @property
    def after_s(self) -> float: ...
    @property
    def most_moves(self) -> int: ...
    @property
    def move_s(self) -> float: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def keeps_host(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class Running:
    """A pod that runs: where, on which cards, and what releases it."""

    pod: ReplayPod
    place: int
    cards: tuple[CardUuid, ...]
    uid: str


@dataclass(slots=True, kw_only=True)
class _Moving:
    """A move under way: the pod holds its target as well."""

    number: int
    place: int
    card: CardUuid
    uid: str
    ends_s: float


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A plan under way, for a pod that waits."""

    number: int
    pod: ReplayPod
    place: int
    cards: frozenset[CardUuid]
    left: list[PlannedMove]
    moving: _Moving | None = None
    dropped: bool = False
    cpu_milli: int = 0  # what is kept of the node besides the cards
    memory_mib: int = 0


# A waiting pod, and the place and the cards that are free for it.
Ready = tuple[int, int, Assignment]


class RoomMaker:
    """Finds plans, carries them out, and keeps the freed cards.

    Attributes:
        begun_s: when each move began.
        planned_s: when each plan began.
        helped_s: when a pod got the cards that were freed for it.
    """

    def __init__(self, state: FleetState, limits: Limits, *, strategy: Strategy) -> None:
        self.state = state
        self.limits = limits
        self.strategy = strategy
        self.begun_s: list[float] = []
        self.planned_s: list[float] = []
        self.helped_s: list[float] = []
        self._place_of = {name: place for place, name in enumerate(state.names)}
        self._running: dict[int, Running] = {}
        self._on: dict[CardUuid, set[int]] = defaultdict(set)
        self._plans: list[_Plan] = []
        self._tried_s: dict[int, float] = {}
        self._now_s = 0.0

    def pods_on(self, card: CardUuid) -> frozenset[int]:
        """Return the pods that run on a card."""
        return frozenset(self._on[card])

    def running(self, number: int) -> Running:
        """Return a pod that runs."""
        return self._running[number]

    def place_of(self, node: str) -> int:
        """Return the place of a node in the fleet."""
        return self._place_of[node]

    def started(self, number: int, running: Running) -> None:
        """Note a pod that runs now."""
        self._running[number] = running
        for card in running.cards:
            self._on[card].add(number)

    def left(self, number: int, running: Running) -> list[int]:
        """Free what a pod held; return the places that have more room."""
        places = [running.place]
        self.state.release(running.pod, running.place, running.uid)
        self._off(number, running)
        del self._running[number]
        for plan in self._plans:
            moving = plan.moving
            if moving is not None and moving.number == number:
                self.state.release(running.pod, moving.place, moving.uid)
                places.append(moving.place)
                moving.ends_s = self._now_s
                moving.number = -1  # there is nothing to move any more
        return places

    def no_more_waiting(self, number: int) -> None:
        """Drop the plan for a pod that got in elsewhere; a move under way is finished."""
        for plan in self._plans:
            if plan.number == number:
                plan.left.clear()
                plan.dropped = True
                self._close(plan.place)
                self._give_host_back(plan)

    def plan(self, waiting: Iterable[tuple[int, ReplayPod]], now_s: float) -> None:
        """Plan for the pods that wait, in their order, as far as the budgets allow."""
        if not self.limits.moves_per_hour:
            return
        hopeless: set[object] = set()
        for number, pod in waiting:
            tried_s = self._tried_s.get(number, -np.inf)
            if pod.need is None or pod.demand in hopeless or now_s - tried_s < _HOUR_S:
                continue
            if any(plan.number == number for plan in self._plans):
                continue
            most = min(self.limits.most_moves, self._budget(now_s))
            if most < 1 or len(self._plans) >= self.limits.in_flight:
                return
            found = self._find(pod, pod.need, most)
            if found is None:
                hopeless.add(pod.demand)
                continue
            self._tried_s[number] = now_s
            self._begin(number, pod, found, now_s)

    def finish(self, now_s: float) -> tuple[list[Ready], list[int]]:
        """End the moves that are due and begin the next ones.

        Returns:
            The pods whose cards are free, and the places that have more room for others after them.
        """
        self._now_s = now_s
        ready: list[Ready] = []
        roomier: list[int] = []
        for plan in list(self._plans):
            if plan.moving is not None and plan.moving.ends_s <= now_s:
                roomier += self._end(plan.moving)
                plan.moving = None
                self._keep_host(plan)
                self._next(plan, now_s)
            if plan.moving is None and not plan.left:
                self._plans.remove(plan)
                self._close(plan.place)
                self._give_host_back(plan)
                roomier.append(plan.place)
                assignment = (
                    None if plan.dropped else self._placed_on(plan.pod, plan.place, plan.cards)
                )
                if assignment is not None:
                    self.helped_s.append(now_s)
                    ready.append((plan.number, plan.place, assignment))
        return ready, roomier

    def _find(self, pod: ReplayPod, need: PodNeed, most: int) -> RoomPlan | None:
        state = self.state
        table = CardTable({name: state.node_info(at) for at, name in enumerate(state.names)})
        places = np.array([self._place_of[name] for name in table.nodes], np.int64)
        moving = {plan.moving.number for plan in self._plans if plan.moving is not None}
        prover = _FleetProver(self, pod, table, places, frozenset(moving))
        cpu, memory = state.cpu_milli.copy(), state.memory_mib.copy()
        for running in self._running.values():
            if len(running.cards) == 1:  # at most what moves could free
                cpu[running.place] += running.pod.host.cpu_milli
                memory[running.place] += running.pod.host.memory_mib
        possible = (cpu >= pod.host.cpu_milli) & (memory >= pod.host.memory_mib)
        cards: Flags = possible[places][table.node]
        return find_room(table, need, prover, cards=cards, most_moves=most)

    def _budget(self, now_s: float) -> int:
        begun = sum(now_s - at_s < _HOUR_S for at_s in self.begun_s[-self.limits.moves_per_hour :])
        promised = sum(len(plan.left) for plan in self._plans)
        return self.limits.moves_per_hour - begun - promised

    def _begin(self, number: int, pod: ReplayPod, found: RoomPlan, now_s: float) -> None:
        plan = _Plan(
            number=number,
            pod=pod,
            place=self._place_of[found.node],
            cards=frozenset(found.cards),
            left=list(found.moves),
        )
        self._plans.append(plan)
        self._close(plan.place)
        self._keep_host(plan)
        self.planned_s.append(now_s)
        self._next(plan, now_s)

    def _next(self, plan: _Plan, now_s: float) -> None:
        """Begin the next move of a plan whose pod is there still; without a target, drop it."""
        while plan.left and plan.moving is None:
            planned = plan.left.pop(0)
            number = int(planned.pod.uid)
            running = self._running.get(number)
            if running is None or running.cards != (planned.pod.card,):
                continue  # it left by itself
            place = self._place_of[planned.node]
            assignment = self._placed_on(running.pod, place, frozenset({planned.card}))
            if assignment is None:
                plan.left.clear()
                plan.dropped = True
                return
            uid = self.state.take(running.pod, place, assignment)
            self.begun_s.append(now_s)
            plan.moving = _Moving(
                number=number,
                place=place,
                card=planned.card,
                uid=uid,
                ends_s=now_s + self.limits.move_s,
            )

    def _end(self, moving: _Moving) -> list[int]:
        """Let the pod leave its source; return the place that has more room."""
        running = self._running.get(moving.number)
        if running is None:
            return []
        source = running.place
        self.state.release(running.pod, source, running.uid)
        self._off(moving.number, running)
        running.place, running.cards, running.uid = moving.place, (moving.card,), moving.uid
        self._on[moving.card].add(moving.number)
        return [source]

    def _keep_host(self, plan: _Plan) -> None:
        """Keep CPU and memory of the node for the pod, as far as there are any yet."""
        if not self.limits.keeps_host or plan.dropped:
            return
        self._give_host_back(plan)
        state, place, host = self.state, plan.place, plan.pod.host
        plan.cpu_milli = min(host.cpu_milli, int(state.cpu_milli[place]))
        plan.memory_mib = min(host.memory_mib, int(state.memory_mib[place]))
        state.cpu_milli[place] -= plan.cpu_milli
        state.memory_mib[place] -= plan.memory_mib

    def _give_host_back(self, plan: _Plan) -> None:
        self.state.cpu_milli[plan.place] += plan.cpu_milli
        self.state.memory_mib[plan.place] += plan.memory_mib
        plan.cpu_milli = plan.memory_mib = 0

    def _off(self, number: int, running: Running) -> None:
        for card in running.cards:
            self._on[card].discard(number)

    def _close(self, place: int) -> None:
        kept = [plan.cards for plan in self._plans if plan.place == place and not plan.dropped]
        self.state.close(place, frozenset().union(*kept))

    def _placed_on(
        self, pod: ReplayPod, place: int, cards: frozenset[CardUuid]
    ) -> Assignment | None:
        """Return a pod's assignment on these cards of a place, or None if it does not fit."""
        if pod.need is None or not self.has_host(pod, place):
            return None
        info = self.state.node_info(place)
        others = frozenset(info.cards) - cards
        answer = place_on(info, pod.need, strategy=self.strategy, exclude=others)
        return answer.assignment if isinstance(answer, Placement) else None

    def has_host(self, pod: ReplayPod, place: int, *, freed: Sequence[ReplayPod] = ()) -> bool:
        """Report whether a place has CPU and memory for a pod once *freed* have left."""
        cpu = self.state.cpu_milli[place] + sum(one.host.cpu_milli for one in freed)
        memory = self.state.memory_mib[place] + sum(one.host.memory_mib for one in freed)
        return bool(cpu >= pod.host.cpu_milli and memory >= pod.host.memory_mib)


class _FleetProver:
    """Proves the parts of a plan on the fleet as it is."""

    def __init__(
        self,
        maker: RoomMaker,
        waiting: ReplayPod,
        table: CardTable,
        places: NDArray[np.int64],
        moving: frozenset[int],
    ) -> None:
        self._maker = maker
        self._waiting = waiting
        self._table = table
        self._places = places
        self._moving = moving

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        found = []
        for number in self._maker.pods_on(card) - self._moving:
            running = self._maker.running(number)
            if len(running.cards) == 1:
                mib = Mib(running.pod.mib)
                found.append(
                    MovablePod(
                        uid=str(number),
                        card=card,
                        allocation=CardAllocation(mib=mib),
                        cost=_COST + _COST_PER_MIB * mib,
                    )
                )
        return sorted(found, key=lambda pod: (pod.cost, pod.uid))

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        maker, waiting = self._maker, self._waiting
        place = maker.place_of(node)
        freed = [maker.running(int(pod.uid)).pod for pod in moved]
        if waiting.need is None or not maker.has_host(waiting, place, freed=freed):
            return False
        info = maker.state.node_info(place)
        for pod in moved:
            uid = maker.running(int(pod.uid)).uid
            info = info.without_allocations({pod.card: pod.allocation}, pod_uid=uid)
        others = frozenset(info.cards) - frozenset(cards)
        answer = place_on(info, waiting.need, strategy=maker.strategy, exclude=others)
        return isinstance(answer, Placement)

    def target(
        self, pod: MovablePod, before: Sequence[PlannedMove], keep_off: frozenset[CardUuid]
    ) -> tuple[str, CardUuid] | None:
        maker, table = self._maker, self._table
        moved = maker.running(int(pod.uid)).pod
        if (need := moved.need) is None:
            return None
        (container,) = need.containers
        cpu, memory = maker.state.cpu_milli.copy(), maker.state.memory_mib.copy()
        for planned in before:
            host = maker.running(int(planned.pod.uid)).pod.host
            cpu[maker.place_of(planned.node)] -= host.cpu_milli
            memory[maker.place_of(planned.node)] -= host.memory_mib
        hosts = (cpu >= moved.host.cpu_milli) & (memory >= moved.host.memory_mib)
        closed = keep_off | {planned.card for planned in before}
        fitting = (
            table.has_room(container)
            & table.suits(need, container)
            & hosts[self._places][table.node]
            & ~table.flags(closed)
        )
        numbers = np.flatnonzero(fitting)
        if not len(numbers):
            return None
        left = (table.free_mib - container.mib) / np.maximum(table.capacity_mib, 1)
        score = SCORING[maker.strategy].score(left, table.heat)[numbers]
        best = int(numbers[int(np.argmax(score))])
        return table.nodes[int(table.node[best])], table.uuids[best]
