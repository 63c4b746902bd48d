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
from fracgpu.disruption.move import HeldBack, HoldReason, Move, PastMove
from fracgpu.disruption.policy import MakeRoom, Mode, RebalancerPolicy
from fracgpu.disruption.room.card_table import Flags
from fracgpu.disruption.room.prover import (
    RoomContext,
    StateProver,
    room_context,
)
from fracgpu.disruption.room.search import (
    PlannedMove,
    RoomPlan,
    find_room,
    single_container,
)
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Beneficiary

NAME: Final = "make-room"

_MOST_WAITING: Final = 50  # looked at in one cycle, the most urgent ones


def subjects(state: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Sequence[str]:
    """Return the pods that wait for room, those with a plan under way first, then by priority."""
    if policy.make_room is MakeRoom.OFF and policy.mode is not Mode.DRY_RUN:
        return ()
    begun = {
        past_move.move.beneficiary.uid
        for past_move in _holding(state, now=now)
        if past_move.move.beneficiary
    }
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
) -> tuple[Move, ...]:
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
    state: DisruptionState, move: Move, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Return why a planned move should not be made any more, or None if it is still valid."""
    beneficiary = move.beneficiary
    waiting = state.pods.get(beneficiary.uid) if beneficiary else None
    if beneficiary is None or waiting is None or not _waits(state, waiting):
        return HeldBack(subject=move.pod, reason=HoldReason.NOT_WAITING)
    candidate = state.pods.get(move.pod_uid)
    held = state.snapshot.pods.get(move.pod_uid)
    if candidate is None or held is None or move.source not in held.by_card:
        return HeldBack(subject=move.pod, reason=HoldReason.NOT_KNOWN)
    reason = why_not_evictable(
        state, candidate, policy=policy, now=now, plan=move.plan
    ) or why_not_now(state, candidate, move.mode)
    if reason is not None:
        return HeldBack(subject=move.pod, reason=reason)
    context = _once_left(state, _kept_for(state, waiting, now=now), policy=policy, now=now)
    prover = StateProver(context, waiting)
    found = _find(context, waiting, prover, cards=_cards_of(beneficiary, context))
    if found is None or move.pod_uid not in {planned.pod.uid for planned in found.moves}:
        return HeldBack(subject=move.pod, reason=HoldReason.NO_ROOM, detail=prover.why_no_target)
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
        and info.gang is None  # room for one of its pods would help none
    )


def _plan(
    state: DisruptionState, waiting: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> tuple[Move, ...] | HoldReason | HeldBack:
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
        past for past in state.past if _is_for(past, waiting) and now - past.started_at < pause
    ]
    if any(not past.only_shown for past in tried):
        return HoldReason.ROOM_TRIED
    if tried and policy.mode is not Mode.ACTIVE:
        detail = f"at {tried[-1].started_at:%H:%M}"
        return HeldBack(subject=waiting.info.record.key, reason=HoldReason.SHOWN, detail=detail)
    context = room_context(state, policy=policy, now=now)
    prover = StateProver(context, waiting)
    found = _find(context, waiting, prover, cards=_free_for_all(context))
    if found is None:
        key = waiting.info.record.key
        return HeldBack(subject=key, reason=HoldReason.NO_ROOM, detail=prover.why_no_target)
    return _moves(context, waiting, found)


def _rest(
    state: DisruptionState,
    waiting: PlacedPod,
    kept: Sequence[PastMove],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> tuple[Move, ...] | HoldReason:
    """Return the moves of a begun plan that are left, on the cards that are kept for the pod."""
    beneficiary = min(kept, key=lambda past: past.started_at).move.beneficiary
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
    return tuple(replace(move, beneficiary=beneficiary) for move in _moves(context, waiting, found))


def _once_left(
    state: DisruptionState,
    kept: Sequence[PastMove],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> RoomContext:
    """Return the context as it will be once the pods that a plan already moves have left."""
    for past_move in kept:
        if past_move.under_way:
            state = replace(state, snapshot=state.snapshot.without(past_move.move.pod_uid))
    plan = next((past_move.move.plan for past_move in kept), "")
    return room_context(state, policy=policy, now=now, plan=plan)


def _kept_for(state: DisruptionState, waiting: PlacedPod, *, now: datetime) -> list[PastMove]:
    return [past for past in state.past if _is_for(past, waiting) and past.holds_cards(now=now)]


def _cards_of(beneficiary: Beneficiary, context: RoomContext) -> Flags:
    return context.table.flags([CardUuid(card) for card in beneficiary.cards])


def _free_for_all(context: RoomContext) -> Flags:
    """Return the cards that no move keeps for a pod, leaves or goes to."""
    busy = {card for past in context.state.past if past.under_way for card in _ends(past)}
    return ~context.table.flags(busy | set(context.held))


def _ends(past_move: PastMove) -> tuple[CardUuid, CardUuid]:
    return past_move.move.source, past_move.move.target


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


def _moves(context: RoomContext, waiting: PlacedPod, plan: RoomPlan) -> tuple[Move, ...]:
    record, policy = waiting.info.record, context.policy
    host = waiting.info.host
    beneficiary = Beneficiary(
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        cards=plan.cards,
        cpu_milli=host.cpu_milli,
        memory_mib=host.memory_mib,
        held_until=context.now + timedelta(seconds=policy.make_room_hold_s),
    )
    return tuple(
        replace(
            _move(context, plan.node, planned),
            beneficiary=beneficiary,
            plan=f"{NAME}-{record.uid}",
            only_recommended=policy.make_room is MakeRoom.RECOMMEND,
        )
        for planned in plan.moves
    )


def _move(context: RoomContext, node: str, planned: PlannedMove) -> Move:
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
    )


def _is_for(past_move: PastMove, waiting: PlacedPod) -> bool:
    beneficiary = past_move.move.beneficiary
    return beneficiary is not None and beneficiary.uid == waiting.uid


def _holding(state: DisruptionState, *, now: datetime) -> list[PastMove]:
    return [past_move for past_move in state.past if past_move.holds_cards(now=now)]
