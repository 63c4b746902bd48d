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
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.heat import (
    CardHeat,
    CardUsage,
    Heat,
    advance,
    blindness,
)
from fracgpu.disruption.methods.hot_card import best_move, plan_for_card
from fracgpu.disruption.move import HeldBack, HoldReason, Move, PastMove, Plan, begun_within
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import PodAllocation


def plan_moves(picture: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Plan:
    """Decide what to move now; the same input always gives the same plan."""
    if policy.mode is Mode.OFF:
        return Plan(held=(HeldBack(subject="cluster", reason=HoldReason.OFF),))
    repel = cards_to_cordon(picture, policy=policy, now=now)
    picture = _with_under_way(picture)
    hot = [uuid for uuid, it in picture.heat.items() if it.heat is Heat.HOT]
    moves: list[Move] = []
    held: list[HeldBack] = []
    for card in sorted(hot, key=lambda uuid: (-card_level(picture, uuid), uuid)):
        whole = _cycle_refusal(picture, policy=policy, now=now)
        if whole is not None:
            held.append(whole)
            break
        found = plan_for_card(picture, card, held, policy=policy, now=now)
        if found is not None:
            moves.append(found)
            picture = _with_planned(picture, found, now=now)
    return Plan(moves=tuple(moves), held=tuple(held), cordon=repel)


def validate_move(
    picture: DisruptionState, move: Move, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    """Look again at a planned move, right before its first disturbing step.

    *picture* must not count the move itself among its past. None means: still right. The target
    may be another card by now; what must still be true is that there is one.
    """
    reading = picture.reading(move.source)
    if reading is None:
        return HeldBack(subject=move.source, reason=HoldReason.NOT_MEASURED)
    if reading.level_ratio < policy.clear_ratio:
        return HeldBack(
            subject=move.source, reason=HoldReason.NO_GAIN, detail="the card cooled down"
        )
    picture = _with_under_way(picture)
    occupant = picture.pods.get(move.pod_uid)
    load = picture.snapshot.card(move.source)
    if occupant is None or load is None or move.pod_uid not in load.pods:
        return HeldBack(subject=move.pod, reason=HoldReason.NOT_KNOWN)
    found = best_move(picture, move.source, occupant, policy=policy, now=now)
    return found if isinstance(found, HeldBack) else None


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
    picture: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    blind = blindness(picture.usage, picture.cards(), policy)
    if blind:
        return HeldBack(subject="cluster", reason=HoldReason.BLIND, detail=blind)
    if now - picture.leading_since < timedelta(seconds=policy.startup_grace_s):
        return HeldBack(subject="cluster", reason=HoldReason.STARTING)
    if sum(it.under_way for it in picture.past) >= policy.max_in_flight:
        return HeldBack(subject="cluster", reason=HoldReason.MOVE_IN_FLIGHT)
    if len(begun_within(picture.past, hours=1, now=now)) >= policy.max_per_hour:
        return HeldBack(subject="cluster", reason=HoldReason.HOURLY_BUDGET)
    return None


def _with_under_way(picture: DisruptionState) -> DisruptionState:
    """Count the memory of replacements that are on their way to a target."""
    for it in picture.past:
        if it.under_way and it.landed is None:
            picture = replace(picture, snapshot=picture.snapshot.with_(_coming(it.move)))
    return picture


def _with_planned(picture: DisruptionState, move: Move, *, now: datetime) -> DisruptionState:
    """Count a move just planned: its budget is spent and its target's memory is taken."""
    return replace(
        picture,
        snapshot=picture.snapshot.with_(_coming(move)),
        past=(*picture.past, PastMove(move=move, started_at=now, under_way=True)),
    )


def _coming(move: Move) -> PodAllocation:
    hold = {move.target: CardAllocation(mib=move.mib, cores=move.cores)}
    return PodAllocation(
        pod_uid=f"replacement of {move.pod_uid}", node=move.target_node, by_card=hold
    )
