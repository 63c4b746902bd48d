"""The method for a pod that waits: free the cards that it needs by moving a few pods.

The moves of a plan begin together. The cards are kept for the pod from then on, the idle ones among
them as well, so what is proven lasts. If a move is given up, others are sought on those cards only.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import make_move, why_not_evictable, why_not_now
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.policy import MakeRoom, Mode, RebalancerPolicy
from fracgpu.disruption.room.card_table import Flags
from fracgpu.disruption.room.prover import (
    RoomContext,
    StateProver,
    held_for,
    room_context,
)
from fracgpu.disruption.room.search import (
    PlannedMove,
    RoomPlan,
    find_room,
    single_container,
)
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Beneficiary, Move, MoveSpec

NAME: Final = "make-room"

_MOST_WAITING: Final = 50  # looked at in one cycle, the most urgent ones


def subjects(state: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Sequence[str]:
    """Return the pods that wait for room, those with a plan under way first, then by priority."""
    if policy.make_room is MakeRoom.OFF and policy.mode is not Mode.DRY_RUN:
        return ()
    begun = set(held_for(state.past, now=now).values())
    since = now - timedelta(seconds=policy.make_room_after_s)
    waiting = [
        (pod.uid not in begun, -pod.info.priority, pod.info.unschedulable_since, pod.uid)
        for pod in state.pods.values()
        if _waits(state, pod)
        and pod.info.unschedulable_since is not None
        and pod.info.unschedulable_since <= since
    ]
    return [uid for *_, uid in sorted(waiting)[:_MOST_WAITING]]


def plan_for(
    state: DisruptionState,
    subject: str,
    held: list[HeldBack],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> tuple[MoveSpec, ...]:
    """Return the moves that make room for one pod, or none; append the reason to *held*."""
    waiting = state.pods.get(subject)
    if waiting is None:
        return ()
    answer = _plan(state, waiting, policy=policy, now=now)
    if isinstance(answer, HoldReason):
        answer = HeldBack(subject=waiting.info.record.key, reason=answer)
    if isinstance(answer, HeldBack):
        held.append(answer)
        return ()
    return answer


def why_outdated(
    state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Return why a planned move should not be made any more, or None if it is still valid."""
    beneficiary = move.beneficiary
    waiting = state.pods.get(beneficiary.uid) if beneficiary else None
    if beneficiary is None or waiting is None or not _waits(state, waiting):
        return HeldBack(subject=move.pod.key, reason=HoldReason.NOT_WAITING)
    candidate = state.pods.get(move.pod.uid)
    held = state.snapshot.pods.get(move.pod.uid)
    if candidate is None or held is None or move.source.card not in held.by_card:
        return HeldBack(subject=move.pod.key, reason=HoldReason.NOT_KNOWN)
    reason = why_not_evictable(
        state, candidate, policy=policy, now=now, plan=move.plan
    ) or why_not_now(state, candidate, move.mode)
    if reason is not None:
        return HeldBack(subject=move.pod.key, reason=reason)
    context = _once_left(state, _kept_for(state, waiting, now=now), policy=policy, now=now)
    prover = StateProver(context, waiting)
    found = _find(context, waiting, prover, cards=_cards_of(beneficiary, context))
    if found is None or move.pod.uid not in {planned.pod.uid for planned in found.moves}:
        detail = prover.why_no_target
        return HeldBack(subject=move.pod.key, reason=HoldReason.NO_ROOM, detail=detail)
    return None


def _waits(state: DisruptionState, pod: PlacedPod) -> bool:
    """Report whether a pod waits for a place that our scheduler did not find."""
    info = pod.info
    return (
        not info.record.node
        and info.record.live
        and not info.record.terminating
        and info.unschedulable_since is not None
        and not info.nominated_node  # preemption makes the room already
        and state.places(info)
        and info.need is not None
        and not info.in_gang  # room for one of its pods would help none
    )


def _plan(
    state: DisruptionState, waiting: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> tuple[MoveSpec, ...] | HoldReason | HeldBack:
    need = waiting.info.need
    if need is None or single_container(need) is None:
        return HoldReason.SEVERAL_CONTAINERS
    if waiting.unjudged:
        return HoldReason.UNJUDGED
    kept = _kept_for(state, waiting, now=now)
    if kept:
        return _rest(state, waiting, kept, policy=policy, now=now)
    pause = timedelta(seconds=policy.owner_cooldown_s)
    tried = [
        past for past in state.past if _is_for(past, waiting) and now - past.planned_at < pause
    ]
    if any(not past.only_shown for past in tried):
        return HoldReason.ROOM_TRIED
    if tried and policy.mode is not Mode.ACTIVE:
        detail = f"at {tried[-1].planned_at:%H:%M}"
        return HeldBack(subject=waiting.info.record.key, reason=HoldReason.SHOWN, detail=detail)
    context = room_context(state, policy=policy, now=now)
    prover = StateProver(context, waiting)
    found = _find(context, waiting, prover, cards=_free_for_all(context))
    if found is None:
        key = waiting.info.record.key
        return HeldBack(subject=key, reason=HoldReason.NO_ROOM, detail=prover.why_no_target)
    record, host = waiting.info.record, waiting.info.host
    beneficiary = Beneficiary(
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        cards=found.cards,
        cpu_milli=host.cpu_milli,
        memory_mib=host.memory_mib,
        held_until=now + timedelta(seconds=policy.make_room_hold_s),
    )
    return _moves(context, found, beneficiary)


def _rest(
    state: DisruptionState,
    waiting: PlacedPod,
    kept: Sequence[Move],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> tuple[MoveSpec, ...] | HoldReason:
    """Return the moves of a begun plan that are left, on the cards that are kept for the pod."""
    beneficiary = min(kept, key=lambda past: past.planned_at).spec.beneficiary
    assert beneficiary is not None, "moves that keep cards have a beneficiary"
    context = _once_left(state, kept, policy=policy, now=now)
    left = policy.make_room_moves - len(kept)
    found = _find(
        context,
        waiting,
        StateProver(context, waiting),
        cards=_cards_of(beneficiary, context),
        most_moves=left,
    )
    if found is None:
        return HoldReason.ROOM_KEPT
    return _moves(context, found, beneficiary)


def _once_left(
    state: DisruptionState,
    kept: Sequence[Move],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> RoomContext:
    """Return the context as it will be once the pods that a plan already moves have left."""
    for past_move in kept:
        if past_move.under_way:
            state = replace(state, snapshot=state.snapshot.without(past_move.spec.pod.uid))
    plan = next((past_move.spec.plan for past_move in kept), "")
    return room_context(state, policy=policy, now=now, plan=plan)


def _kept_for(state: DisruptionState, waiting: PlacedPod, *, now: datetime) -> list[Move]:
    return [past for past in state.past if _is_for(past, waiting) and held_for([past], now=now)]


def _cards_of(beneficiary: Beneficiary, context: RoomContext) -> Flags:
    return context.table.flags(beneficiary.cards)


def _free_for_all(context: RoomContext) -> Flags:
    """Return the cards that no move keeps for a pod, leaves or goes to."""
    busy = {card for past in context.state.past if past.under_way for card in _ends(past)}
    return ~context.table.flags(busy | set(context.held))


def _ends(past_move: Move) -> tuple[CardUuid, CardUuid]:
    return past_move.spec.source.card, past_move.spec.target.card


def _find(
    context: RoomContext,
    waiting: PlacedPod,
    prover: StateProver,
    *,
    cards: Flags,
    most_moves: int | None = None,
) -> RoomPlan | None:
    need = waiting.info.need
    assert need is not None, "a pod that waits for cards has a need"
    most = context.policy.make_room_moves if most_moves is None else most_moves
    return find_room(
        context.table,
        need,
        prover,
        cards=cards & context.allowed(waiting)[context.table.node],
        most_moves=most,
    )


def _moves(context: RoomContext, plan: RoomPlan, beneficiary: Beneficiary) -> tuple[MoveSpec, ...]:
    return tuple(_move(context, plan.node, planned, beneficiary) for planned in plan.moves)


def _move(
    context: RoomContext, node: str, planned: PlannedMove, beneficiary: Beneficiary
) -> MoveSpec:
    state, pod = context.state, planned.pod
    candidate = state.pods[pod.uid]
    use = context.use(candidate, pod.card)
    capacity_mib = state.snapshot.nodes[node].cards[pod.card].card.capacity_mib
    return make_move(
        state,
        candidate,
        source=(node, pod.card),
        target=(planned.node, planned.card),
        busy_ratio=use or 0.0,
        level_ratio=card_level(state, pod.card),
        gain_points=100 * pod.allocation.mib / capacity_mib - pod.cost,
        method=NAME,
        policy=context.policy,
        now=context.now,
        beneficiary=beneficiary,
        plan=f"{NAME}-{beneficiary.uid}",
    )


def _is_for(past_move: Move, waiting: PlacedPod) -> bool:
    beneficiary = past_move.spec.beneficiary
    return beneficiary is not None and beneficiary.uid == waiting.uid
