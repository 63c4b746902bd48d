"""What a plan that makes room has to prove, asked of the disruption state.

Whether a pod may be moved is said by `evictability`; whether a pod fits on a node by the code that
places real pods. A target is measured and stays cool, as for every move.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import (
    disruption_cost,
    mode_of,
    why_not_evictable,
    why_not_now,
)
from fracgpu.disruption.disruption_state import DisruptionState, budgets_of
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.disruption.room.card_table import CardTable, Flags
from fracgpu.disruption.room.search import MovablePod, PlannedMove
from fracgpu.disruption.simulation import PlacementSimulation
from fracgpu.k8s.scheduling.cluster import Change
from fracgpu.k8s.scheduling.node_filters import NodeFilter, allowed_nodes
from fracgpu.placement.fit import CardRequest, keep_limit
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.placement.snapshot_index import Cells
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.card_hold import held_cards, hold_of
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Move

_ROOM: Final = frozenset({NodeFilter.RESOURCES, NodeFilter.PORTS})


class RoomContext:
    """What the plans of one cycle have in common.

    Args:
        state: the input of the plan.
        policy: the limits.
        now: the moment.
        plan: the one of which the rest is sought; what has begun of it does not count.

    Attributes:
        asked: how often all cards, or all nodes, were looked at for one pod.
        simulation: where replacements could run.
        roomiest_mib: the most that is free on a card that may be a target.
    """

    def __init__(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime, plan: str = ""
    ) -> None:
        self.asked = 0
        self.state = state
        self.policy = policy
        self.now = now
        self.plan = plan
        self.table = CardTable(state.index.matrix(state.snapshot))
        self.held = held_for(state.past, now=now)
        self.being_moved = frozenset(
            past_move.spec.pod.uid for past_move in state.past if past_move.under_way
        )
        self.simulation = PlacementSimulation(state)
        self._refused: dict[str, bool] = {}
        self._costs: dict[str, float] = {}
        self._allowed: dict[str, Flags] = {}
        self.measured = self.flags(state.cool_cards.measured(losing=False, policy=policy))
        self.targets = self._targets()
        free_mib = self.table.cards.free_mib[self.targets]
        self.roomiest_mib = int(free_mib.max()) if len(free_mib) else 0

    def evictable(self, candidate: PlacedPod) -> bool:
        """Report whether a pod may be moved at all."""
        found = self._refused.get(candidate.uid)
        if found is None:
            reason = why_not_evictable(
                self.state, candidate, policy=self.policy, now=self.now, plan=self.plan
            ) or why_not_now(self.state, candidate, mode_of(candidate.info))
            found = self._refused[candidate.uid] = reason is None
        return found

    def cost(self, candidate: PlacedPod, allocation: CardAllocation) -> float:
        """Return what it costs to move a pod."""
        found = self._costs.get(candidate.uid)
        if found is None:
            found = disruption_cost(self.state, candidate, mib=allocation.mib)
            self._costs[candidate.uid] = found
        return found

    def allowed(self, candidate: PlacedPod) -> Flags:
        """Return on which nodes of the table a pod may run."""
        found = self._allowed.get(candidate.uid)
        if found is None:
            self.asked += 1
            waits = not candidate.info.record.node
            # Whether a node has room for a waiting pod is seen once others have left it.
            found = self._allowed[candidate.uid] = self.simulation.nodes_for(
                candidate, self.table.nodes, without=_ROOM if waits else frozenset()
            )
        return found

    def flags(self, cells: Cells) -> Flags:
        """Return which cards of the table are among some cells of the state's index."""
        return cells[self.table.rows, self.table.columns]

    def cells(self, flags: Flags) -> Cells:
        """Return the cells of the state's index in which some cards of the table are."""
        found = np.zeros(self.state.cool_cards.history.shape, np.bool_)
        found[self.table.rows[flags], self.table.columns[flags]] = True
        return found

    def use(self, candidate: PlacedPod, card: CardUuid) -> float | None:
        """Return a pod's use of its card; what the whole card does, if the pod is not measured."""
        reading = self.state.reading(card)
        if reading is None:
            return None
        return reading.pods.get(candidate.uid, reading.level_ratio)

    def _targets(self) -> Flags:
        """Return which cards may be the target of some move now."""
        state, policy = self.state, self.policy
        budgets = budgets_of(state, policy=policy, now=self.now)
        sources = {past_move.spec.source.card for past_move in state.past if past_move.under_way}
        closed = self.table.flags({*self.held, *sources, *budgets.closed_targets()})
        return self.table.open & ~closed


def held_for(past: Sequence[Move], *, now: datetime) -> dict[CardUuid, str]:
    """Return the cards that moves keep for waiting pods, with the UID of the pod."""
    holds = [hold for past_move in past if (hold := hold_of(past_move)) is not None]
    return {card: hold.pod_uid for card, hold in held_cards(holds, now=now).items()}


@lru_cache(maxsize=1)
def room_context(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime, plan: str = ""
) -> RoomContext:
    """Return the context of a cycle; it is built once for all waiting pods."""
    return RoomContext(state, policy=policy, now=now, plan=plan)


class StateProver:
    """Proves the parts of a plan for one waiting pod.

    Args:
        context: of the cycle.
        waiting: the pod that gets in.

    Attributes:
        unmeasured: the cards that could have been the only targets of some pod, but for their
            history.
    """

    def __init__(self, context: RoomContext, waiting: PlacedPod) -> None:
        self._context = context
        self._waiting = waiting
        self.unmeasured: Flags = np.zeros(len(context.table.uuids), np.bool_)

    @property
    def why_no_target(self) -> str:
        """How many cards only lacked history, and when the first has it; empty for none."""
        context = self._context
        return context.state.cool_cards.why_not_measured(
            context.cells(self.unmeasured), losing=False, policy=context.policy
        )

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        context = self._context
        snapshot = context.state.snapshot
        node = context.table.nodes[int(context.table.node[context.table.index[card]])]
        found = []
        for uid in sorted(snapshot.nodes[node].cards[card].pods):
            candidate = context.state.pods.get(uid)
            if (
                candidate is None
                or uid in context.being_moved
                # Who is more important is not disturbed for who is less.
                or candidate.info.priority > self._waiting.info.priority
                or context.use(candidate, card) is None
                or not context.evictable(candidate)
            ):
                continue
            allocation = snapshot.pods[uid].by_card[card]
            if allocation.mib > context.roomiest_mib:
                continue
            found.append(
                MovablePod(
                    uid=uid,
                    owner=candidate.owner_uid,
                    card=card,
                    allocation=allocation,
                    cost=context.cost(candidate, allocation),
                )
            )
        return sorted(found, key=lambda pod: (pod.cost, pod.uid))

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        state, waiting = self._context.state, self._waiting
        need = waiting.info.need
        row = self._context.table.nodes.index(node)
        if need is None or not self._context.allowed(waiting)[row]:
            return False
        if not self._has_host(node, moved):
            return False
        info = state.snapshot.nodes[node].opened_for(waiting.uid)
        for pod in moved:
            info = info.without_allocations({pod.card: pod.allocation}, pod_uid=pod.uid)
        others = frozenset(info.cards) - frozenset(cards)
        answer = place(info, need, strategy=state.strategy, exclude=others)
        return isinstance(answer, Placement)

    def _has_host(self, node: str, moved: Sequence[MovablePod]) -> bool:
        """Report whether kube-scheduler would take the waiting pod on a node once *moved* left."""
        self._context.asked += 1
        state = self._context.state
        cluster = state.scheduling
        if node not in cluster.rows:
            return False
        gone = tuple(Change(state.pods[pod.uid].scheduled, -1) for pod in moved)
        taken = allowed_nodes(cluster, self._waiting.scheduled, changes=gone)
        return bool(taken[cluster.rows[node]])

    def targets(
        self, pod: MovablePod, keep_off: frozenset[CardUuid]
    ) -> Iterator[tuple[str, CardUuid]]:
        state, table = self._context.state, self._context.table
        candidate = state.pods[pod.uid]
        need = candidate.info.need
        assert need is not None, "a pod that may be moved has a need"
        for number in self._ranked(pod, candidate, keep_off):
            node, card = table.nodes[int(table.node[number])], table.uuids[number]
            info = state.snapshot.nodes[node]
            others = frozenset(info.cards) - {card}
            answer = place(info, need, strategy=state.strategy, exclude=others)
            if isinstance(answer, Placement):
                yield node, card

    def fits_beside(self, pod: MovablePod, node: str, before: Sequence[PlannedMove]) -> bool:
        self._context.asked += 1
        pods = self._context.state.pods
        joined = [pods[move.pod.uid] for move in before]
        return self._context.simulation.takes_beside(pods[pod.uid], node, joined)

    def _ranked(
        self, pod: MovablePod, candidate: PlacedPod, closed: frozenset[CardUuid]
    ) -> Iterator[int]:
        """Yield the cards that may be the target, in the order of the pod's strategy."""
        self._context.asked += 1
        context, policy = self._context, self._context.policy
        table, state, cool = context.table, context.state, context.state.cool_cards
        need, use = candidate.info.need, context.use(candidate, pod.card)
        assert need is not None, "a pod that may be moved has a need"
        assert use is not None, "a pod that may be moved is on a measured card"
        source = state.snapshot.nodes[candidate.info.record.node].cards[pod.card].card
        left = state.left_by(candidate.owner_uid, policy=policy, now=context.now)
        free_mib = pod.allocation.mib + policy.free_margin_mib
        room = cool.with_room(busy_ratio=use, model=source.model, free_mib=free_mib)
        expected, often = state.loads(policy).forecast(pod.uid, use)
        calm = (expected <= policy.ceiling_ratio) & (often <= policy.hot_ratio)
        bearing = room & calm.reshape(room.shape)
        fitting = (
            context.targets
            & context.allowed(candidate)[table.node]
            & context.flags(bearing)
            & ~table.flags(closed | left)
            & table.has_room(need, CardRequest.of_all(pod.allocation))
            & keep_limit(table.cards.limits_mib, borrows=pod.allocation.borrow_mib > 0)
        )
        numbers = np.flatnonzero(fitting & context.measured)
        if len(numbers):
            preference = context.simulation.preference(
                candidate, table.rows[numbers], table.columns[numbers]
            )
            cards = table.cards
            order = np.lexsort((cards.free_mib[numbers], -preference, cards.avoided[numbers]))
            yield from numbers[order].tolist()
        else:
            self.unmeasured |= fitting
