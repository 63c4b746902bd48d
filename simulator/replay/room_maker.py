"""The rebalancer of a replay: the product's own search for room, and moves that take their time.

While a plan is under way its cards are closed to everybody else; a pod that is moved holds its
source and its target until the move has ended, as in a surge.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable, Flags
from fracgpu.disruption.room.search import RoomPlan, find_room
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place as place_on
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment
from simulator.replay.fleet import FleetState
from simulator.replay.fleet_prover import Fleet, FleetProver, Running
from simulator.replay.workload import ReplayPod

_HOUR_S: Final = 3600.0


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
    def per_node(self) -> int: ...
    @property
    def hold_s(self) -> float: ...
    @property
    def keeps_host(self) -> bool: ...


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
    """A plan under way, for a pod that waits; its moves are found one after the other.

    Attributes:
        cards: kept for the pod until *until_s*, or until it is placed.
        made: moves that were begun.
        dropped: the pod got in elsewhere.
        cpu_milli: what is kept of the node besides the cards, and *memory_mib*.
    """

    number: int
    pod: ReplayPod
    place: int
    cards: frozenset[CardUuid]
    until_s: float
    made: int = 0
    moving: list[_Moving] = field(default_factory=list)
    dropped: bool = False
    cpu_milli: int = 0
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
        self._fleet = Fleet(
            state=state,
            strategy=strategy,
            place_of=self._place_of,
            running=self._running,
            on=self._on,
        )
        self._plans: list[_Plan] = []
        self._tried_s: dict[int, float] = {}
        self._now_s = 0.0

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
        for moving in self._under_way():
            if moving.number == number:
                self.state.release(running.pod, moving.place, moving.uid)
                places.append(moving.place)
                moving.ends_s = self._now_s
                moving.number = -1  # there is nothing to move any more
        return places

    def no_more_waiting(self, number: int) -> None:
        """Drop the plan for a pod that got in elsewhere; a move under way is finished."""
        for plan in self._plans:
            if plan.number == number:
                plan.dropped = True
                self._close(plan.place)
                self._give_host_back(plan)

    def plan(self, waiting: Iterable[tuple[int, ReplayPod]], now_s: float) -> None:
        """Continue the plans, and plan for the pods that wait, as far as the budgets allow."""
        if not self.limits.moves_per_hour:
            return
        for plan in self._plans:
            if not plan.moving and not plan.dropped and plan.until_s > now_s:
                self._continue(plan, now_s)
        hopeless: set[object] = set()
        for number, pod in waiting:
            tried_s = self._tried_s.get(number, -np.inf)
            if pod.need is None or pod.demand in hopeless or now_s - tried_s < _HOUR_S:
                continue
            if self._budget(now_s) < 1 or self._in_flight() >= self.limits.in_flight:
                return
            found = self._find(pod, pod.need, self.limits.most_moves)
            if found is None or len(found.moves) > self._budget(now_s):
                hopeless.add(pod.demand)
                continue
            self._tried_s[number] = now_s
            self._begin(number, pod, found, now_s)

    def finish(self, now_s: float) -> tuple[list[Ready], list[int]]:
        """End the moves that are due, and the plans whose pod is placed or whose time is over.

        Returns:
            The pods whose cards are free, and the places that have more room for others after them.
        """
        self._now_s = now_s
        ready: list[Ready] = []
        roomier: list[int] = []
        for plan in list(self._plans):
            due = [moving for moving in plan.moving if moving.ends_s <= now_s]
            for moving in due:
                plan.moving.remove(moving)
                roomier += self._end(moving)
            if due:
                self._keep_host(plan)
            assignment = self._placed(plan)
            over = plan.dropped or plan.until_s <= now_s
            if assignment is None and (plan.moving or not over):
                continue
            self._plans.remove(plan)
            self._close(plan.place)
            self._give_host_back(plan)
            roomier.append(plan.place)
            if assignment is not None:
                self.helped_s.append(now_s)
                ready.append((plan.number, plan.place, assignment))
        return ready, roomier

    def _find(
        self, pod: ReplayPod, need: PodNeed, most: int, *, plan: _Plan | None = None
    ) -> RoomPlan | None:
        """Return moves for a pod, those of a begun *plan* on its cards alone."""
        state = self.state
        table = CardTable({name: state.node_info(at) for at, name in enumerate(state.names)})
        places = np.array([self._place_of[name] for name in table.nodes], np.int64)
        moving = frozenset(moving.number for moving in self._under_way())
        prover = FleetProver(self._fleet, pod, table, moving=moving)
        cpu, memory = state.cpu_milli.copy(), state.memory_mib.copy()
        for running in self._running.values():
            if len(running.cards) == 1:  # at most what moves could free
                cpu[running.place] += running.pod.host.cpu_milli
                memory[running.place] += running.pod.host.memory_mib
        possible = (cpu >= pod.host.cpu_milli) & (memory >= pod.host.memory_mib)
        cards: Flags = possible[places][table.node]
        if plan is not None:
            cards = cards & table.flags(plan.cards)
        return find_room(table, need, prover, cards=cards, most_moves=most)

    def _under_way(self) -> list[_Moving]:
        return [moving for plan in self._plans for moving in plan.moving]

    def _in_flight(self) -> int:
        return len(self._under_way())

    def _budget(self, now_s: float) -> int:
        """Return how many more moves may begin in this hour."""
        begun = sum(now_s - at_s < _HOUR_S for at_s in self.begun_s[-self.limits.moves_per_hour :])
        return self.limits.moves_per_hour - begun

    def _begin(self, number: int, pod: ReplayPod, found: RoomPlan, now_s: float) -> None:
        plan = _Plan(
            number=number,
            pod=pod,
            place=self._place_of[found.node],
            cards=frozenset(found.cards),
            until_s=now_s + self.limits.hold_s,
        )
        self._plans.append(plan)
        self._close(plan.place)
        self._keep_host(plan)
        self.planned_s.append(now_s)
        self._move(plan, found, now_s)

    def _continue(self, plan: _Plan, now_s: float) -> None:
        """Begin the next moves of a plan, found anew on the cards that are kept."""
        need, left = plan.pod.need, self.limits.most_moves - plan.made
        if need is None or left < 1:
            return
        self._give_host_back(plan)
        self.state.close(plan.place, frozenset())
        found = self._find(plan.pod, need, left, plan=plan)
        self._close(plan.place)
        self._keep_host(plan)
        if found is not None:
            self._move(plan, found, now_s)

    def _move(self, plan: _Plan, found: RoomPlan, now_s: float) -> None:
        """Begin as many of the moves as may be under way at once."""
        limits = self.limits
        most = min(limits.per_node, limits.in_flight - self._in_flight(), self._budget(now_s))
        for planned in found.moves[: max(most, 0)]:
            number = int(planned.pod.uid)
            running, place = self._running[number], self._place_of[planned.node]
            assignment = self._placed_on(running.pod, place, frozenset({planned.card}))
            if assignment is None:
                continue  # CPU and memory that are kept for the waiting pod: found anew later
            uid = self.state.take(running.pod, place, assignment)
            self.begun_s.append(now_s)
            plan.made += 1
            plan.moving.append(
                _Moving(
                    number=number,
                    place=place,
                    card=planned.card,
                    uid=uid,
                    ends_s=now_s + limits.move_s,
                )
            )

    def _placed(self, plan: _Plan) -> Assignment | None:
        """Return the waiting pod's assignment on the cards of its plan, if they are free."""
        if plan.dropped or plan.moving:
            return None
        cards = self.state.node_info(plan.place).cards
        (container,) = plan.pod.need.containers if plan.pod.need else (None,)
        if container is None or any(cards[uuid].free_mib < container.mib for uuid in plan.cards):
            return None
        self._give_host_back(plan)
        self.state.close(plan.place, frozenset())
        assignment = self._placed_on(plan.pod, plan.place, plan.cards)
        self._close(plan.place)
        self._keep_host(plan)
        return assignment

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
        if pod.need is None or not self._fleet.has_host(pod, place):
            return None
        info = self.state.node_info(place)
        others = frozenset(info.cards) - cards
        answer = place_on(info, pod.need, strategy=self.strategy, exclude=others)
        return answer.assignment if isinstance(answer, Placement) else None
