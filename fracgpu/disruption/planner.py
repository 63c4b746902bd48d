"""Which pods to move off hot cards and where they could go, or why to hold still.

Pod and target are chosen together: the pair with the highest gain less cost. Whether a pod fits is
decided by the same :func:`fracgpu.placement.placement.place` that places new pods.

And which cards to cordon, because they are hot or have just cooled, and which to avoid before.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.brakes import Budgets
from fracgpu.disruption.disruption_state import DisruptionState, budgets_of, card_level
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
    Heat,
    advance,
    blindness,
)
from fracgpu.disruption.methods import hot_card, make_room, requested
from fracgpu.disruption.methods.method import Method
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.ledger import with_claims
from fracgpu.state.move_object import Move, MoveSpec, new_move
from fracgpu.state.reservation import MoveClaims, claims_of

# In the order in which they are asked.
METHODS: Final[tuple[Method, ...]] = (requested, hot_card, make_room)


def plan_moves(
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    methods: Sequence[Method] = METHODS,
) -> Plan:
    """Return what to move now; the same input always gives the same plan."""
    if policy.mode is Mode.OFF:
        return Plan(held=(HeldBack(subject="cluster", reason=HoldReason.OFF),))
    state = _with_under_way(state, policy=policy, now=now)
    moves: list[MoveSpec] = []
    held: list[HeldBack] = []
    candidates = [
        (method, subject)
        for method in methods
        for subject in method.subjects(state, policy=policy, now=now)
    ]
    # The same for every candidate, and the longest look of all: at each card.
    standing = _cycle_refusal(state, policy=policy, now=now) if candidates else None
    for its_method, subject in candidates:
        refusal = standing or _budget_refusal(state, policy=policy, now=now)
        if refusal is not None:
            held.append(refusal)
            break
        for move in its_method.plan_for(state, subject, held, policy=policy, now=now):
            moves.append(move)
            state = _with_planned(state, move, policy=policy, now=now)
    return Plan(moves=tuple(moves), held=tuple(held))


def validate_move(
    state: DisruptionState,
    move: MoveSpec,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    methods: Sequence[Method] = METHODS,
) -> HeldBack | None:
    """Return why a planned move should not be made any more, or None if it is still valid.

    Called right before the first step that disturbs the pod; the method that planned the move
    decides. The past moves of *state* must not include the move itself. The target may be another
    card by now, as long as there is one.
    """
    method = next((method for method in methods if move.method == method.NAME), None)
    if method is None:  # planned by another version of this program
        detail = f"this version has no method '{move.method}'"
        return HeldBack(subject=move.pod.key, reason=HoldReason.NO_GAIN, detail=detail)
    return method.why_outdated(
        _with_under_way(state, policy=policy, now=now), move, policy=policy, now=now
    )


def first_heat(
    card: CardUuid, past: Sequence[Move], *, policy: RebalancerPolicy, now: datetime
) -> CardHeat:
    """Return the heat that a card starts with when its first trusted reading arrives.

    A restarted rebalancer knows from the Moves which cards it was relieving.
    """
    off = [
        past_move
        for past_move in past
        if past_move.spec.source.card == card
        and (past_move.under_way or past_move.disturbed)
        and past_move.spec.beneficiary is None  # the card that a waiting pod gets was not hot
    ]
    if any(past_move.under_way for past_move in off):
        return CardHeat(heat=Heat.RELIEVING, since=now)
    ends = [past_move.ended_at or past_move.planned_at for past_move in off]
    if ends and now - max(ends) < timedelta(seconds=policy.settle_s):
        return CardHeat(heat=Heat.SETTLING, since=max(ends))
    return CardHeat(heat=Heat.COOL, since=now)


def advance_all(
    before: Mapping[CardUuid, CardHeat],
    usage: Mapping[CardUuid, CardUsage],
    past: Sequence[Move],
    *,
    policy: RebalancerPolicy,
    now: datetime,
) -> dict[CardUuid, CardHeat]:
    """Return every card's heat one cycle later; a card that was never measured has none."""
    sources = {past_move.spec.source.card for past_move in past if past_move.under_way}
    after = {}
    for uuid, card_usage in usage.items():
        heat = before.get(uuid)
        if heat is None and card_usage.reading is not None:
            heat = first_heat(uuid, past, policy=policy, now=now)
        if heat is not None:
            relieving = uuid in sources
            after[uuid] = advance(heat, card_usage, relieving=relieving, policy=policy, now=now)
    return after


def _cycle_refusal(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    if policy.paused:
        return HeldBack(subject="cluster", reason=HoldReason.PAUSED)
    blind = blindness(state.usage, state.cards(), policy)
    if blind:
        return HeldBack(subject="cluster", reason=HoldReason.BLIND, detail=blind)
    if now - state.leading_since < timedelta(seconds=policy.startup_grace_s):
        return HeldBack(subject="cluster", reason=HoldReason.STARTING)
    frozen_until = policy.frozen_until(now)
    if frozen_until is not None:
        detail = f"until {frozen_until:%Y-%m-%d %H:%M %Z}"
        return HeldBack(subject="cluster", reason=HoldReason.CHANGE_FREEZE, detail=detail)
    return None


def _budget_refusal(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> HeldBack | None:
    reason = budgets_of(state, policy=policy, now=now).of_cluster()
    return HeldBack(subject="cluster", reason=reason) if reason else None


def _with_under_way(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> DisruptionState:
    """Return the state with its budgets, and with what Moves keep on cards.

    That is counted as the scheduler extender counts it, so that both agree on what is free.
    """
    return replace(
        state,
        budgets=Budgets(state.past, policy=policy, now=now),
        snapshot=with_claims(state.snapshot, _claims(state.past), now=now),
    )


def _with_planned(
    state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
) -> DisruptionState:
    """Return the state with a planned move counted: its budget and what it keeps on cards."""
    planned = new_move(move, now=now)
    return replace(
        state,
        snapshot=with_claims(state.snapshot, _claims([planned]), now=now),
        past=(*state.past, planned),
        budgets=budgets_of(state, policy=policy, now=now).with_(move),
    )


def _claims(past: Iterable[Move]) -> Iterator[MoveClaims]:
    """Yield what moves keep on cards."""
    for past_move in past:
        claims = claims_of(past_move)
        if claims.reservation is not None or claims.hold is not None:
            yield claims


def cards_to_cordon(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> frozenset[CardUuid]:
    """Return the cards that should take no new slice for now.

    These are hot cards, cards that a pod is being moved off, cards just relieved, and cards that
    need to be replaced. The cordon of a card that is no longer measured is left to lapse. At most
    the allowed share of all cards is returned, or a cluster that is hot throughout would reject
    every new pod; sources of moves come first.
    """
    sources = {
        past_move.spec.source.card
        for past_move in state.past
        # What is freed for a waiting pod is kept for it by the Move; a cordon would keep it off.
        if past_move.under_way and past_move.spec.beneficiary is None
    }
    wanted = [
        uuid
        for uuid, card_heat in state.heat.items()
        if uuid in sources or _is_to_cordon(card_heat, state.reading(uuid), policy=policy, now=now)
    ]
    ranked = sorted(
        {*wanted, *sources},
        key=lambda uuid: (uuid not in sources, -card_level(state, uuid), uuid),
    )
    limit = max(1, len(sources), int(policy.max_cordoned_ratio * len(state.cards())))
    return frozenset(ranked[:limit])


def cards_to_avoid(
    state: DisruptionState,
    *,
    cordoned: frozenset[CardUuid],
    policy: RebalancerPolicy,
    now: datetime,
) -> frozenset[CardUuid]:
    """Return the cards that should take a new slice only where no other card fits.

    These are the cards that are measured, not cool and not cordoned: above all those whose short
    window is hot already, and hot ones beyond the share of cards that may be cordoned. So are cards
    just relieved, although they are cool again, while another card is cooler. A pod never waits for
    one of them, so that there is no limit.
    """
    warm = {
        uuid for uuid, card_heat in state.heat.items() if _is_warm(card_heat, state.reading(uuid))
    }
    relieved = _relieved(state, cordoned=cordoned, policy=policy, now=now)
    return frozenset((warm | relieved) - cordoned)


def _relieved(
    state: DisruptionState,
    *,
    cordoned: frozenset[CardUuid],
    policy: RebalancerPolicy,
    now: datetime,
) -> set[CardUuid]:
    """Return the cards that a hot pod left lately and that are not the coolest.

    Lately is as long as the pods of its owner are not moved back. Cordoned cards do not count: no
    pod would get them instead. Nor do unmeasured ones, which are never cool.
    """
    levels = {
        uuid: reading.level_ratio
        for uuid in state.heat.keys() - cordoned
        if (reading := state.reading(uuid))
    }
    lately = now - timedelta(seconds=policy.return_cooldown_s)
    sources = {
        past_move.spec.source.card
        for past_move in state.past
        if past_move.disturbed
        and not past_move.only_shown
        and past_move.spec.beneficiary is None  # the card that a waiting pod gets was not hot
        and past_move.ended_at is not None
        and past_move.ended_at > lately
    }
    coolest = min(levels.values(), default=math.inf)
    return {uuid for uuid in sources & state.heat.keys() if levels.get(uuid, math.inf) > coolest}


def _is_warm(heat: CardHeat, reading: CardReading | None) -> bool:
    return reading is not None and heat.heat is not Heat.COOL


def _is_to_cordon(
    heat: CardHeat, reading: CardReading | None, *, policy: RebalancerPolicy, now: datetime
) -> bool:
    if reading is None:
        return False
    if heat.heat is Heat.SETTLING:
        return now - heat.since < timedelta(seconds=policy.settle_s)
    return heat.heat in (Heat.HOT, Heat.RELIEVING)
