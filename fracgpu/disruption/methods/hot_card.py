"""The method for a hot card: which of its pods to move, and where to.

The value of a move is what it is expected to save, as far as the last forecasts were right, less
what the disruption costs: see `fracgpu.disruption.load_history`. What a target may bear is
therefore no fixed line: while work is being lost, a busy target that stays below full will do.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from fracgpu.cards.card import FULL_CORES, CardUuid, Health
from fracgpu.disruption.candidates import (
    disruption_cost,
    make_move,
    mode_of,
    why_not_evictable,
    why_not_now,
)
from fracgpu.disruption.disruption_state import (
    DisruptionState,
    Hindsight,
    budgets_of,
    card_level,
    hindsight,
    is_losing,
)
from fracgpu.disruption.heat import (
    CardReading,
    Heat,
    unrelievable,
)
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.disruption.simulation import PlacementSimulation, Targets
from fracgpu.placement.snapshot_index import Cells
from fracgpu.request.need import PodNeed
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MoveMode, MoveSpec

NAME: Final = "hot-card"

_SINGLE_REPLICA_COST: Final = 0.5  # in points, where nothing runs until the new pod is ready

_OVERUSE_SLACK: Final = 0.05  # share of a card by which a pod may exceed what it was granted

_WORTH_OF_OVERUSE: Final = 0.5  # share of the best gain that the pod above its share must bring

_RELIEF: Final = 2.0  # points for a whole card's load taken off, up to what makes the card calm
_OVERSHOOT: Final = 0.25  # of the load taken off beyond that

_MOST_COMPARED: Final = 256  # targets, those with the lowest expected load

_TIE: Final = 1e-3  # of what a target is expected to be busy: of equal savings, the calmest card


def subjects(
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,  # noqa: ARG001 - the interface
    now: datetime,  # noqa: ARG001 - the interface
) -> Sequence[str]:
    """Return the hot cards, the busiest first."""
    hot = [uuid for uuid, card_heat in state.heat.items() if card_heat.heat is Heat.HOT]
    return sorted(hot, key=lambda uuid: (-card_level(state, uuid), uuid))


def plan_for(
    state: DisruptionState,
    subject: str,
    held: list[HeldBack],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> tuple[MoveSpec, ...]:
    """Return the best move off one hot card, if any; append every reason against one to *held*."""
    card = CardUuid(subject)
    refusal = _card_refusal(state, card, policy=policy, now=now)
    if refusal is not None:
        held.append(refusal)
        return ()
    info = state.snapshot.card(card)
    simulation = PlacementSimulation(state)
    known = hindsight(state, policy=policy, now=now)
    found: list[MoveSpec] = []
    for uid in sorted(info.pods if info else ()):
        candidate = state.pods.get(uid)
        if candidate is None:
            held.append(HeldBack(subject=uid, reason=HoldReason.NOT_KNOWN, card=card))
            continue
        answer = best_move(simulation, card, candidate, known, policy=policy, now=now)
        if isinstance(answer, MoveSpec):
            found.append(answer)
        else:
            held.append(replace(answer, card=card))
    best = _ranked(state, found)
    held += [_outscored(move) for move in best[1:]]
    return tuple(best[:1])


def _ranked(state: DisruptionState, moves: Sequence[MoveSpec]) -> Sequence[MoveSpec]:
    """Return the moves off one card, best first.

    First a pod that uses more of the card's memory than it is assigned. One that is busier than its
    share allows goes before those that keep to it, unless it would bring less than half of what the
    best move does.
    """
    most = max((move.reason.gain_points for move in moves), default=0.0)

    def rank(move: MoveSpec) -> tuple[bool, bool, float, str]:
        reading = state.reading(move.source.card)
        overuses = reading is not None and move.pod.uid in reading.overusers
        first = (
            move.reason.gain_points >= _WORTH_OF_OVERUSE * most
            and move.reason.busy_ratio > _granted_ratio(state, move) + _OVERUSE_SLACK
        )
        return not overuses, not first, -move.reason.gain_points, move.pod.key

    return sorted(moves, key=rank)


def _granted_ratio(state: DisruptionState, move: MoveSpec) -> float:
    """Return the share of the card that a pod was granted: of compute, else of memory, 0..1."""
    if move.request.cores:
        return move.request.cores / FULL_CORES
    info = state.snapshot.card(move.source.card)
    return move.request.mib / info.card.capacity_mib if info and info.card.capacity_mib else 1.0


def _outscored(move: MoveSpec) -> HeldBack:
    return HeldBack(
        subject=move.pod.key,
        reason=HoldReason.OUTSCORED,
        detail=f"{move.reason.gain_points:.1f} points",
        card=move.source.card,
        gain_points=move.reason.gain_points,
    )


def why_outdated(
    state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Return why a planned move should not be made any more, or None if it is still valid."""
    reading = state.reading(move.source.card)
    if reading is None:
        return HeldBack(subject=move.source.card, reason=HoldReason.NOT_MEASURED)
    if reading.level_ratio < policy.clear_ratio:
        return HeldBack(
            subject=move.source.card, reason=HoldReason.NO_GAIN, detail="the card cooled down"
        )
    doubt = _doubt(state, move.source.card, reading, policy)
    if doubt is not None:
        return HeldBack(subject=move.source.card, reason=doubt)
    pod = state.pods.get(move.pod.uid)
    card_info = state.snapshot.card(move.source.card)
    if pod is None or card_info is None or move.pod.uid not in card_info.pods:
        return HeldBack(subject=move.pod.key, reason=HoldReason.NOT_KNOWN)
    known = hindsight(state, policy=policy, now=now)
    simulation = PlacementSimulation(state)
    found = best_move(simulation, move.source.card, pod, known, policy=policy, now=now)
    return found if isinstance(found, HeldBack) else None


def _card_refusal(
    state: DisruptionState, card: CardUuid, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    reading = state.reading(card)
    if reading is None:
        return HeldBack(subject=card, reason=HoldReason.NOT_MEASURED)
    doubt = _doubt(state, card, reading, policy)
    if doubt is not None:
        return HeldBack(subject=card, reason=doubt)
    why = unrelievable(reading, policy)
    if why is not None:
        return HeldBack(subject=card, reason=HoldReason[why.name])
    budgets = budgets_of(state, policy=policy, now=now)
    shown = budgets.shown(card)
    if shown is not None:
        detail = f"at {shown.planned_at:%H:%M}: {shown.spec.pod.key}"
        return HeldBack(subject=card, reason=HoldReason.SHOWN, detail=detail)
    reason = budgets.of_source(card)
    return HeldBack(subject=card, reason=reason) if reason else None


def _doubt(
    state: DisruptionState, card: CardUuid, reading: CardReading, policy: RebalancerPolicy
) -> HoldReason | None:
    """Return why no pod should be disturbed at this moment although the card is hot, or None."""
    info = state.snapshot.card(card)
    if info is not None and info.card.health is not Health.HEALTHY:
        return HoldReason.BROKEN
    if reading.repeating:
        return HoldReason.REPEATING
    if reading.latest_ratio < policy.clear_ratio:
        return HoldReason.CALM_NOW
    return None


def best_move(
    simulation: PlacementSimulation,
    card: CardUuid,
    candidate: PlacedPod,
    known: Hindsight,
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> MoveSpec | HeldBack:
    """Return the best move of one pod off a hot card, or why it is held back."""
    state = simulation.state
    key = candidate.info.record.key
    refusal = why_not_evictable(state, candidate, policy=policy, now=now) or why_not_now(
        state, candidate, mode_of(candidate.info)
    )
    if refusal is not None:
        return HeldBack(subject=key, reason=refusal)
    reading = state.reading(card)
    use = reading.pods.get(candidate.uid) if reading else None
    if reading is None or use is None:
        return HeldBack(subject=key, reason=HoldReason.NOT_MEASURED_POD)
    if use < policy.min_pod_busy_ratio:
        return HeldBack(subject=key, reason=HoldReason.TOO_SMALL)
    if use > policy.hot_ratio:
        return HeldBack(subject=key, reason=HoldReason.TOO_LARGE)
    bearing = _bearing(state, card, candidate, use + known.growth, policy=policy)
    if not bearing.any():
        return HeldBack(subject=key, reason=HoldReason.NO_TARGET)
    closed = _closed(state, card, candidate, policy=policy, now=now)
    measured = state.cool_cards.measured(losing=is_losing(reading), policy=policy)
    targets = simulation.targets(candidate, exclude=closed, among=bearing & measured)
    if not targets:
        unmeasured = bearing & ~measured
        # Asked only where it can say something: it takes as long as the search for a target.
        unknown = (
            simulation.targets(candidate, exclude=closed, among=unmeasured)
            if unmeasured.any()
            else targets
        )
        why = (
            _without_history(state, unknown, losing=is_losing(reading), policy=policy),
            simulation.why_none(candidate) if targets.refused else "",
        )
        detail = "; ".join(filter(None, why))
        return HeldBack(subject=key, reason=HoldReason.NO_TARGET, detail=detail)
    saved, coolest = _best_saving(state, candidate, targets, growth=known.growth, policy=policy)
    # To take back what made things worse is no bet on a forecast.
    belief = 1.0 if candidate.uid in known.regretted else known.belief
    cost = _cost(state, card, candidate)
    gain = round(belief * (100 * saved + _relief(reading, use, policy)) - cost, 6)
    if gain <= 0:
        return HeldBack(
            subject=key,
            reason=HoldReason.NO_GAIN,
            detail=f"{gain:.1f} points",
            gain_points=gain,
        )
    # On ties the source node, which has the image already; then what the scheduler would choose.
    near = coolest.on(candidate.info.record.node)
    target = simulation.scheduler_choice(candidate, coolest.only(near) if near.any() else coolest)
    assert target is not None, "there is a coolest card"
    return make_move(
        state,
        candidate,
        source=(candidate.info.record.node, card),
        target=(target.node, target.card),
        busy_ratio=use,
        level_ratio=reading.level_ratio,
        gain_points=gain,
        saved_points=100 * saved,
        method=NAME,
        policy=policy,
        now=now,
    )


def _relief(reading: CardReading, use: float, policy: RebalancerPolicy) -> float:
    """Return what it is worth, in points, to bring a card nearer to where it is calm."""
    excess = reading.level_ratio - policy.clear_ratio
    beyond = max(0.0, use - excess)
    return _RELIEF * (min(use, excess) - _OVERSHOOT * beyond)


def _best_saving(
    state: DisruptionState,
    candidate: PlacedPod,
    targets: Targets,
    *,
    growth: float,
    policy: RebalancerPolicy,
) -> tuple[float, Targets]:
    """Return the most that moving a pod saves, as a share of a card, and the targets that do so."""
    loads, width = state.loads(policy), state.index.matrix(state.snapshot).width
    numbers = targets.rows * width + targets.columns
    expected = loads.expected(numbers)
    if len(targets) > _MOST_COMPARED:
        fewest = np.zeros(len(targets), np.bool_)
        fewest[np.argpartition(expected, _MOST_COMPARED)[:_MOST_COMPARED]] = True
        targets, numbers, expected = targets.only(fewest), numbers[fewest], expected[fewest]
    saved = loads.saved(candidate.uid, numbers, grows=growth)
    ranked = saved - _TIE * expected
    best = ranked >= ranked.max() - 1e-9
    return float(saved[best].max()), targets.only(best)


def _bearing(
    state: DisruptionState,
    source: CardUuid,
    candidate: PlacedPod,
    busy_ratio: float,
    *,
    policy: RebalancerPolicy,
) -> Cells:
    """Return the cool cards of the same model that could give a pod what it uses, and memory.

    Those of which too little is known are among them.
    """
    node = state.snapshot.nodes.get(candidate.info.record.node)
    info = node.cards.get(source) if node else None
    need = candidate.info.need
    free_mib = _mib_of(need) + policy.free_margin_mib if need else 0
    model = info.card.model if info else ""
    return state.cool_cards.with_room(busy_ratio=busy_ratio, model=model, free_mib=free_mib)


def _without_history(
    state: DisruptionState, targets: Targets, *, losing: bool, policy: RebalancerPolicy
) -> str:
    """Return how many cards would do but for their history, and when the first can; or ""."""
    cool = state.cool_cards
    cells = np.zeros(cool.history.shape, np.bool_)
    if targets:
        cells[targets.rows, targets.columns] = True
    return cool.why_not_measured(cells, losing=losing, policy=policy)


def _closed(
    state: DisruptionState,
    source: CardUuid,
    candidate: PlacedPod,
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> frozenset[CardUuid]:
    """Return the cards that must not be the target, however cool; the source is one."""
    budgets = budgets_of(state, policy=policy, now=now)
    left: frozenset[CardUuid] = frozenset()
    if not budgets.may_undo(candidate.uid):
        left = state.left_by(candidate.owner_uid, policy=policy, now=now)
    sources = {past_move.spec.source.card for past_move in state.under_way()}
    return frozenset({source, *left, *sources, *budgets.closed_targets()})


def _mib_of(need: PodNeed) -> int:
    return sum(container.mib for container in need.containers)


def _cost(state: DisruptionState, card: CardUuid, candidate: PlacedPod) -> float:
    allocation = state.snapshot.pods[candidate.uid].by_card[card]
    alone = mode_of(candidate.info) is MoveMode.EVICT and all(
        other is candidate for other in state.pods_of(candidate.owner_uid)
    )
    cost = disruption_cost(state, candidate, mib=allocation.mib)
    return cost + (_SINGLE_REPLICA_COST if alone else 0.0)
