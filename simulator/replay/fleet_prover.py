"""Proves the parts of a plan that makes room, on the fleet of a replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.disruption.room.search import MovablePod, PlannedMove
from fracgpu.placement.fit import CardRequest
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import SCORING
from fracgpu.placement.placement import place as place_on
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.units import Mib
from simulator.replay.fleet import FleetState
from simulator.replay.workload import ReplayPod

_COST: Final = 5.0
_COST_PER_MIB: Final = 1 / (10 * 1024)


@dataclass(slots=True, kw_only=True)
class Running:
    """A pod that runs: where, on which cards, and what releases it."""

    pod: ReplayPod
    place: int
    cards: tuple[CardUuid, ...]
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The fleet as it is now.

    Attributes:
        place_of: the place of each node.
        running: the pods that run, by number.
        on: which of them are on each card.
    """

    state: FleetState
    strategy: Strategy
    place_of: Mapping[str, int]
    running: Mapping[int, Running]
    on: Mapping[CardUuid, set[int]]

    def has_host(self, pod: ReplayPod, place: int, *, freed: Sequence[ReplayPod] = ()) -> bool:
        """Report whether a place has CPU and memory for a pod once *freed* have left."""
        cpu = self.state.cpu_milli[place] + sum(one.host.cpu_milli for one in freed)
        memory = self.state.memory_mib[place] + sum(one.host.memory_mib for one in freed)
        return bool(cpu >= pod.host.cpu_milli and memory >= pod.host.memory_mib)


class FleetProver:
    """Proves the parts of a plan on the fleet as it is."""

    def __init__(
        self, fleet: Fleet, waiting: ReplayPod, table: CardTable, *, moving: frozenset[int]
    ) -> None:
        self._fleet = fleet
        self._waiting = waiting
        self._table = table
        self._places = np.array([fleet.place_of[name] for name in table.nodes], np.int64)
        self._moving = moving

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        found = []
        for number in self._fleet.on.get(card, set()) - self._moving:
            running = self._fleet.running[number]
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
        fleet, waiting = self._fleet, self._waiting
        place = fleet.place_of[node]
        freed = [fleet.running[int(pod.uid)].pod for pod in moved]
        if waiting.need is None or not fleet.has_host(waiting, place, freed=freed):
            return False
        info = fleet.state.node_info(place)
        for pod in moved:
            uid = fleet.running[int(pod.uid)].uid
            info = info.without_allocations({pod.card: pod.allocation}, pod_uid=uid)
        others = frozenset(info.cards) - frozenset(cards)
        answer = place_on(info, waiting.need, strategy=fleet.strategy, exclude=others)
        return isinstance(answer, Placement)

    def target(
        self, pod: MovablePod, before: Sequence[PlannedMove], keep_off: frozenset[CardUuid]
    ) -> tuple[str, CardUuid] | None:
        fleet, table = self._fleet, self._table
        moved = fleet.running[int(pod.uid)].pod
        if (need := moved.need) is None:
            return None
        (container,) = need.containers
        cpu, memory = fleet.state.cpu_milli.copy(), fleet.state.memory_mib.copy()
        for planned in before:
            host = fleet.running[int(planned.pod.uid)].pod.host
            cpu[fleet.place_of[planned.node]] -= host.cpu_milli
            memory[fleet.place_of[planned.node]] -= host.memory_mib
        hosts = (cpu >= moved.host.cpu_milli) & (memory >= moved.host.memory_mib)
        closed = keep_off | {planned.card for planned in before}
        fitting = (
            table.has_room(need, CardRequest.of(container))
            & hosts[self._places][table.node]
            & ~table.flags(closed)
        )
        numbers = np.flatnonzero(fitting)
        if not len(numbers):
            return None
        cards = table.cards
        left = (cards.free_mib - container.mib) / np.maximum(cards.capacity_mib, 1)
        score = SCORING[fleet.strategy].score(left, cards.heat)[numbers]
        best = int(numbers[int(np.argmax(score))])
        return table.nodes[int(table.node[best])], table.uuids[best]
