"""Relief for a hot card: which of its pods to move, and where to.

A move is worth its gain, what it takes off the card, less its cost, what the pod's users feel.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.evictability import why_not_evictable
from fracgpu.disruption.heat import (
    Heat,
    MeasuredPodUse,
    unrelievable,
)
from fracgpu.disruption.move import HeldBack, HoldReason, Move, PastMove
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed
from fracgpu.state.cluster_state import PlacedPod

NAME: Final = "hot-card"

# Costs of a move, in points (per cent of one card), and how a point of overshoot counts.
_BASE_COST: Final = 5.0

_NO_SURGE_COST: Final = 10.0  # the old pod ends before the new one is ready

_SINGLE_REPLICA_COST: Final = 10.0

_PRIORITY_COST: Final = 5.0

_COST_PER_10_GIB: Final = 1.0  # reloading takes as long as the memory is large

_OVERSHOOT: Final = 0.25

_FORECAST_WEIGHT: Final = 0.1


def cards(state: DisruptionState) -> Sequence[CardUuid]:
    """Return the hot cards, the busiest first."""
    hot = [uuid for uuid, it in state.heat.items() if it.heat is Heat.HOT]
    return sorted(hot, key=lambda uuid: (-card_level(state, uuid), uuid))


def plan_for_card(
    state: DisruptionState,
    card: CardUuid,
    held: list[HeldBack],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> Move | None:
    """Find the best move off one hot card; every refusal on the way goes to *held*."""
    refusal = _card_refusal(state, card, policy=policy, now=now)
    if refusal is not None:
        held.append(refusal)
        return None
    card_info = state.snapshot.card(card)
    found: list[Move] = []
    for uid in sorted(card_info.pods if card_info else ()):
        pod = state.pods.get(uid)
        if pod is None:
            held.append(HeldBack(subject=uid, reason=HoldReason.NOT_KNOWN))
            continue
        answer = best_move(state, card, pod, policy=policy, now=now)
        if isinstance(answer, Move):
            found.append(answer)
        else:
            held.append(answer)
    return min(found, key=lambda it: (-it.gain_points, it.pod), default=None)


def why_outdated(
    state: DisruptionState, move: Move, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Say why a planned move is not right any more: its card cooled down, or its pod must stay."""
    reading = state.reading(move.source)
    if reading is None:
        return HeldBack(subject=move.source, reason=HoldReason.NOT_MEASURED)
    if reading.level_ratio < policy.clear_ratio:
        return HeldBack(
            subject=move.source, reason=HoldReason.NO_GAIN, detail="the card cooled down"
        )
    pod = state.pods.get(move.pod_uid)
    card_info = state.snapshot.card(move.source)
    if pod is None or card_info is None or move.pod_uid not in card_info.pods:
        return HeldBack(subject=move.pod, reason=HoldReason.NOT_KNOWN)
    found = best_move(state, move.source, pod, policy=policy, now=now)
    return found if isinstance(found, HeldBack) else None


def _card_refusal(
    state: DisruptionState, card: CardUuid, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    reading = state.reading(card)
    if reading is None:
        return HeldBack(subject=card, reason=HoldReason.NOT_MEASURED)
    why = unrelievable(reading, policy)
    if why is not None:
        return HeldBack(subject=card, reason=HoldReason[why.name])
    if _recently(state.past, policy.card_cooldown_s, now=now, source=card):
        return HeldBack(subject=card, reason=HoldReason.CARD_COOLDOWN)
    node = state.node_of(card)
    if any(it.under_way and it.move.source_node == node for it in state.past):
        return HeldBack(subject=card, reason=HoldReason.NODE_BUSY)
    return None


def _recently(
    past: Sequence[PastMove],
    cooldown_s: float,
    *,
    now: datetime,
    source: CardUuid | None = None,
    target: CardUuid | None = None,
) -> bool:
    return any(
        now - it.started_at < timedelta(seconds=cooldown_s)
        and (
            (source is not None and it.move.source == source)
            or (target is not None and target in (it.move.target, it.landed))
        )
        for it in past
    )


def best_move(
    state: DisruptionState,
    card: CardUuid,
    occupant: PlacedPod,
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> Move | HeldBack:
    """Find the best card for one pod of a hot card, or say why it stays."""
    key = occupant.info.record.key
    refusal = why_not_evictable(state, occupant, policy=policy, now=now)
    if refusal is not None:
        return HeldBack(subject=key, reason=refusal)
    reading = state.reading(card)
    use = reading.pods.get(occupant.uid) if reading else None
    if reading is None or use is None:
        return HeldBack(subject=key, reason=HoldReason.NOT_MEASURED_POD)
    if use.busy_ratio < policy.min_pod_busy_ratio:
        return HeldBack(subject=key, reason=HoldReason.TOO_SMALL)
    if use.busy_ratio > policy.ceiling_ratio:
        return HeldBack(subject=key, reason=HoldReason.TOO_LARGE)
    targets = list(_targets(state, card, occupant, use, policy=policy, now=now))
    if not targets:
        return HeldBack(subject=key, reason=HoldReason.NO_TARGET)
    source_node = occupant.info.record.node
    cost = _cost(state, card, occupant)
    moves = [_move(state, card, occupant, use, it, cost=cost, policy=policy) for it in targets]
    best = min(
        moves,
        # On ties the node that already has the image.
        key=lambda it: (-it.gain_points, it.target_node != source_node, it.target_node, it.target),
    )
    if best.gain_points <= 0:
        return HeldBack(
            subject=key, reason=HoldReason.NO_GAIN, detail=f"{best.gain_points:.1f} points"
        )
    return best


def _targets(
    state: DisruptionState,
    card: CardUuid,
    occupant: PlacedPod,
    use: MeasuredPodUse,
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> Iterator[tuple[str, CardUuid]]:
    """Give for each node the card that a replacement would get there, if it may and fits."""
    need = occupant.info.need
    assert need is not None, "a pod without a need was refused before"
    unfit = _unfit(state, card, occupant, use, policy=policy, now=now)
    for node, node_info in sorted(state.snapshot.nodes.items()):
        if node_info.cards.keys() <= unfit:
            continue
        if not occupant.scheduling_constraints.allows(
            node_info.node.labels, state.taints.get(node, ())
        ):
            continue
        answer = place(node_info, need, strategy=state.strategy, exclude=unfit)
        if isinstance(answer, Placement):
            cards = {part.card for slices in answer.assignment.values() for part in slices}
            if len(cards) == 1:
                yield node, cards.pop()


def _unfit(
    state: DisruptionState,
    source: CardUuid,
    pod: PlacedPod,
    use: MeasuredPodUse,
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> frozenset[CardUuid]:
    """Give every card that must not be the target, the source itself among them."""
    card_info = state.snapshot.card(source)
    model = card_info.card.model if card_info else ""
    left = {
        it.move.source
        for it in state.past
        if it.move.owner_uid == pod.owner_uid
        and now - it.started_at < timedelta(seconds=policy.return_cooldown_s)
    }
    sources = {it.move.source for it in state.past if it.under_way}
    unfit = {source, *left, *sources}
    for node_info in state.snapshot.nodes.values():
        for uuid, it in node_info.cards.items():
            if (
                it.card.model != model
                or not _cool_enough(state, uuid, pod, use, policy=policy)
                or _recently(state.past, policy.card_cooldown_s, now=now, target=uuid)
            ):
                unfit.add(uuid)
    return frozenset(unfit)


def _cool_enough(
    state: DisruptionState,
    card: CardUuid,
    pod: PlacedPod,
    use: MeasuredPodUse,
    *,
    policy: RebalancerPolicy,
) -> bool:
    heat, reading = state.heat.get(card), state.reading(card)
    if heat is None or heat.heat is not Heat.COOL or reading is None:
        return False
    coming = sum(
        it.move.busy_ratio
        for it in state.past
        if it.under_way and card in (it.move.target, it.landed)
    )
    need = pod.info.need
    return (
        reading.forecast_ratio + coming + use.busy_ratio <= policy.ceiling_ratio
        and reading.level_ratio + coming + use.high_ratio <= policy.hot_ratio
        and (need is None or _most_mib(need) + policy.free_margin_mib <= reading.free_mib)
    )


def _most_mib(need: PodNeed) -> int:
    return sum(it.mib for it in need.containers)


def _move(  # noqa: PLR0913 - the facts about one pair of pod and card
    state: DisruptionState,
    card: CardUuid,
    occupant: PlacedPod,
    use: MeasuredPodUse,
    target: tuple[str, CardUuid],
    *,
    cost: float,
    policy: RebalancerPolicy,
) -> Move:
    view = occupant.info
    reading, there = state.reading(card), state.reading(target[1])
    assert reading is not None, "a source was measured"
    assert there is not None, "so was a target"
    allocation = state.snapshot.pods[occupant.uid].by_card[card]
    excess = 100 * (reading.level_ratio - policy.ceiling_ratio)
    points = 100 * use.busy_ratio
    gain = (
        min(points, excess)
        - _OVERSHOOT * max(0.0, points - excess)
        - cost
        - _FORECAST_WEIGHT * 100 * there.forecast_ratio
    )
    return Move(
        pod_uid=occupant.uid,
        namespace=view.record.namespace,
        name=view.record.name,
        owner_uid=occupant.owner_uid,
        source=card,
        source_node=view.record.node,
        target=target[1],
        target_node=target[0],
        mib=allocation.mib,
        cores=allocation.cores,
        busy_ratio=use.busy_ratio,
        level_ratio=reading.level_ratio,
        gain_points=round(gain, 6),
        method=NAME,
    )


def _cost(state: DisruptionState, card: CardUuid, pod: PlacedPod) -> float:
    allocation = state.snapshot.pods[pod.uid].by_card[card]
    alone = not any(it.owner_uid == pod.owner_uid and it is not pod for it in state.pods.values())
    return (
        _BASE_COST
        + _NO_SURGE_COST
        + (_SINGLE_REPLICA_COST if alone else 0.0)
        + (_PRIORITY_COST if pod.info.priority > 0 else 0.0)
        + _COST_PER_10_GIB * allocation.mib / (10 * 1024)
    )
