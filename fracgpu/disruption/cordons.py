"""Which cards take nothing new for now, because they are hot or have just cooled."""

from datetime import datetime, timedelta

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.heat import (
    CardHeat,
    Heat,
)
from fracgpu.disruption.policy import RebalancerPolicy


def cards_to_cordon(
    state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
) -> frozenset[CardUuid]:
    """Give the cards that no new slice should go to for now.

    Hot ones, those a pod is being moved off, and those just relieved. A card that is not measured
    any more is left to its own lapsing cordon. Never more than the allowed share of all cards, or
    a cluster that is hot throughout would turn away every new pod; sources of moves come first.
    """
    sources = {it.move.source for it in state.past if it.under_way}
    wanted = [
        uuid
        for uuid, it in state.heat.items()
        if uuid in sources or (state.reading(uuid) and _repels(it, policy=policy, now=now))
    ]
    ranked = sorted(
        {*wanted, *sources},
        key=lambda uuid: (uuid not in sources, -card_level(state, uuid), uuid),
    )
    limit = max(1, len(sources), int(policy.max_cordoned_ratio * len(state.cards())))
    return frozenset(ranked[:limit])


def _repels(heat: CardHeat, *, policy: RebalancerPolicy, now: datetime) -> bool:
    if heat.heat is Heat.SETTLING:
        return now - heat.since < timedelta(seconds=policy.settle_s)
    return heat.heat in (Heat.HOT, Heat.RELIEVING)
