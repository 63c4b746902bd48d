"""Which cards to cordon, because they are hot or have just cooled, and which to avoid before."""

import math
from datetime import datetime, timedelta

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    Heat,
)
from fracgpu.disruption.policy import RebalancerPolicy


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
        past_move.move.source
        for past_move in state.past
        # What is freed for a waiting pod is kept for it by the Move; a cordon would keep it off.
        if past_move.under_way and past_move.move.beneficiary is None
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
        past_move.move.source
        for past_move in state.past
        if past_move.disturbed
        and not past_move.only_shown
        and past_move.move.beneficiary is None  # the card that a waiting pod gets was not hot
        and past_move.ended_at is not None
        and past_move.ended_at > lately
    }
    coolest = min(levels.values(), default=math.inf)
    return {uuid for uuid in sources & state.heat.keys() if levels.get(uuid, math.inf) > coolest}


def _is_warm(heat: CardHeat, reading: CardReading | None) -> bool:
    return reading is not None and (reading.broken or heat.heat is not Heat.COOL)


def _is_to_cordon(
    heat: CardHeat, reading: CardReading | None, *, policy: RebalancerPolicy, now: datetime
) -> bool:
    if reading is None:
        return False
    if reading.broken:
        return True
    if heat.heat is Heat.SETTLING:
        return now - heat.since < timedelta(seconds=policy.settle_s)
    return heat.heat in (Heat.HOT, Heat.RELIEVING)
