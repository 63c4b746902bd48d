"""What to move off a hot card and where it could go, or why to hold still.

Victim and target are chosen together: of all pairs, the one that relieves most for what it costs.
Whether a pod fits is asked of the same :func:`fracgpu.placement.placement.place` that places real
pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.cordons import cards_to_cordon
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import (
    CardHeat,
    CardUsage,
    Heat,
    advance,
    blindness,
)
from fracgpu.disruption.methods.method import Method
from fracgpu.disruption.methods.registry import METHODS
from fracgpu.disruption.move import HeldBack, HoldReason, Move, PastMove, Plan, begun_within
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import PodAllocation


def plan_moves(
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    methods: Sequence[Method] = METHODS,
) -> Plan:
    """Decide what to move now; the same input always gives the same plan."""
    if policy.mode is Mode.OFF:
        return Plan(held=(HeldBack(subject="cluster", reason=HoldReason.OFF),))
    cordon = cards_to_cordon(state, policy=policy, now=now)
    state = _with_under_way(state)
    moves: list[Move] = []
    held: list[HeldBack] = []
    candidates = [(method, card) for method in methods for card in method.cards(state)]
    for method_of_card, card in candidates:
        whole = _cycle_refusal(state, policy=policy, now=now)
        if whole is not None:
            held.append(whole)
            break
        found = method_of_card.plan_for_card(state, card, held, policy=policy, now=now)
        if found is not None:
            moves.append(found)
            state = _with_planned(state, found, now=now)
    return Plan(moves=tuple(moves), held=tuple(held), cordon=cordon)


def validate_move(
    state: DisruptionState,
    move: Move,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    methods: Sequence[Method] = METHODS,
) -> HeldBack | None:
    """Look again at a planned move, right before its first disturbing step.

    *state* must not count the move itself among its past. None means: still right, as the method
    that planned it judges.
    """
    method = next((method for method in methods if move.method == method.NAME), None)
    if method is None:  # planned by another version of this program
        detail = f"this version has no method '{move.method}'"
        return HeldBack(subject=move.pod, reason=HoldReason.NO_GAIN, detail=detail)
    return method.why_outdated(_with_under_way(state), move, policy=policy, now=now)


def first_heat(
    card: CardUuid, past: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime
) -> CardHeat:
    """Give the heat that a card begins with when its first trusted reading comes in.

    A restarted rebalancer knows from the record of moves which cards it was working on.
    """
    off = [it for it in past if it.move.source == card]
    if any(it.under_way for it in off):
        return CardHeat(heat=Heat.RELIEVING, since=now)
    ends = [it.ended_at or it.started_at for it in off]
    if ends and now - max(ends) < timedelta(seconds=policy.settle_s):
        return CardHeat(heat=Heat.SETTLING, since=max(ends))
    return CardHeat(heat=Heat.COOL, since=now)


def advance_all(
    before: Mapping[CardUuid, CardHeat],
    usage: Mapping[CardUuid, CardUsage],
    past: Sequence[PastMove],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> dict[CardUuid, CardHeat]:
    """Give every card's heat one cycle later; a card never measured yet has none."""
    sources = {it.move.source for it in past if it.under_way}
    after = {}
    for uuid, it in usage.items():
        heat = before.get(uuid)
        if heat is None and it.reading is not None:
            heat = first_heat(uuid, past, policy=policy, now=now)
        if heat is not None:
            relieving = uuid in sources
            after[uuid] = advance(heat, it, relieving=relieving, policy=policy, now=now)
    return after


def _cycle_refusal(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    blind = blindness(state.usage, state.cards(), policy)
    if blind:
        return HeldBack(subject="cluster", reason=HoldReason.BLIND, detail=blind)
    if now - state.leading_since < timedelta(seconds=policy.startup_grace_s):
        return HeldBack(subject="cluster", reason=HoldReason.STARTING)
    if sum(it.under_way for it in state.past) >= policy.max_in_flight:
        return HeldBack(subject="cluster", reason=HoldReason.MOVE_IN_FLIGHT)
    if len(begun_within(state.past, hours=1, now=now)) >= policy.max_per_hour:
        return HeldBack(subject="cluster", reason=HoldReason.HOURLY_BUDGET)
    return None


def _with_under_way(state: DisruptionState) -> DisruptionState:
    """Count the memory of replacements that are on their way to a target."""
    for it in state.past:
        if it.under_way and it.landed is None:
            state = replace(state, snapshot=state.snapshot.with_(_coming(it.move)))
    return state


def _with_planned(state: DisruptionState, move: Move, *, now: datetime) -> DisruptionState:
    """Count a move just planned: its budget is spent and its target's memory is taken."""
    return replace(
        state,
        snapshot=state.snapshot.with_(_coming(move)),
        past=(*state.past, PastMove(move=move, started_at=now, under_way=True)),
    )


def _coming(move: Move) -> PodAllocation:
    hold = {move.target: CardAllocation(mib=move.mib, cores=move.cores)}
    return PodAllocation(
        pod_uid=f"replacement of {move.pod_uid}", node=move.target_node, by_card=hold
    )
