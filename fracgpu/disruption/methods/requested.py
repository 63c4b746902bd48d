"""The method for what people ask for: a pod is moved, or a card is drained.

A pod asks by its annotation, a card by one of its node. What protects a pod from moves protects
it here as well; what only keeps them few does not, nor what its card shows.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import make_move, mode_of, why_not_evictable, why_not_now
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.disruption.simulation import PlacementSimulation
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MoveSpec

NAME: Final = "requested"


def subjects(
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,  # noqa: ARG001 - the interface
    now: datetime,  # noqa: ARG001 - the interface
) -> Sequence[str]:
    """Return the pods that were asked for by themselves, then those of cards that are drained."""
    drained = {card for node in state.snapshot.nodes.values() for card in node.node.drained}
    found = [
        (names.MOVE_REQUESTED not in pod.info.annotations, pod.info.record.key, uid)
        for uid, pod in state.pods.items()
        if names.MOVE_REQUESTED in pod.info.annotations
        or not drained.isdisjoint(_cards_of(state, uid))
    ]
    return [uid for _, _, uid in sorted(found)]


def plan_for(
    state: DisruptionState,
    subject: str,
    held: list[HeldBack],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> tuple[MoveSpec, ...]:
    """Return the move of one pod; append the reason against it to *held*."""
    found = _move(state, state.pods[subject], policy=policy, now=now)
    if isinstance(found, MoveSpec):
        return (found,)
    held.append(found)
    return ()


def why_outdated(
    state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Return why a planned move should not be made any more, or None if it is still valid."""
    pod = state.pods.get(move.pod.uid)
    if pod is None or move.source.card not in _cards_of(state, move.pod.uid):
        return HeldBack(subject=move.pod.key, reason=HoldReason.NOT_KNOWN)
    found = _move(state, pod, policy=policy, now=now)
    return found if isinstance(found, HeldBack) else None


def _move(
    state: DisruptionState, candidate: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> MoveSpec | HeldBack:
    pod, cards = candidate.info, _cards_of(state, candidate.uid)
    key, mode = pod.record.key, mode_of(candidate.info)
    if not cards:
        return HeldBack(subject=key, reason=HoldReason.CARD_GONE)
    if _rests(state, candidate, policy=policy, now=now):
        return HeldBack(subject=key, reason=HoldReason.GIVEN_UP)
    if any(past.spec.owner.uid == candidate.owner_uid for past in state.under_way()):
        return HeldBack(subject=key, reason=HoldReason.REPLICAS_NOT_READY)
    refusal = why_not_evictable(state, candidate, policy=policy, now=now, requested=True)
    refusal = refusal or why_not_now(state, candidate, mode)
    if refusal is not None:
        return HeldBack(subject=key, reason=refusal)
    source = cards[0]
    reading = state.reading(source)
    busy_ratio = reading.pods.get(candidate.uid, 0.0) if reading else 0.0
    room = state.cool_cards.with_room(
        busy_ratio=busy_ratio,
        model=state.snapshot.nodes[pod.record.node].cards[source].card.model,
        free_mib=state.snapshot.pods[candidate.uid].by_card[source].mib + policy.free_margin_mib,
    )
    expected = state.loads(policy).forecast(candidate.uid, busy_ratio)[0].reshape(room.shape)
    bearing = room & (expected <= policy.hot_ratio)
    simulation = PlacementSimulation(state)
    moving = {past.spec.source.card for past in state.under_way()}
    targets = simulation.targets(candidate, exclude=frozenset(moving), among=bearing)
    if not targets:
        return HeldBack(
            subject=key, reason=HoldReason.NO_TARGET, detail=simulation.why_none(candidate)
        )
    calmest = expected[targets.rows, targets.columns]
    target = simulation.scheduler_choice(candidate, targets.only(calmest == np.min(calmest)))
    assert target is not None, "there is a coolest card"
    return make_move(
        state,
        candidate,
        source=(pod.record.node, source),
        target=(target.node, target.card),
        busy_ratio=busy_ratio,
        level_ratio=card_level(state, source),
        gain_points=0.0,
        method=NAME,
        policy=policy,
        now=now,
        requested=True,
    )


def _cards_of(state: DisruptionState, pod_uid: str) -> Sequence[CardUuid]:
    """Return the cards that a pod holds and that its node still has."""
    held = state.snapshot.pods.get(pod_uid)
    node = state.snapshot.nodes.get(held.node) if held else None
    return [card for card in held.by_card if card in node.cards] if held and node else []


def _rests(
    state: DisruptionState, candidate: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> bool:
    """Report whether a move of the pod ended a short while ago, or is under way."""
    pause = timedelta(seconds=policy.give_up_cooldown_s)
    return any(
        past.under_way or (past.ended_at is not None and now - past.ended_at < pause)
        for past in state.past
        if past.spec.pod.uid == candidate.uid and not past.only_shown
    )
