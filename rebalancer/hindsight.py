"""Looks back at dry-run moves: was each right, as far as what happened without it can show?

A dry run changes nothing, so once a real move would have been verified, both of its claims can be
checked: that its source would still be hot, and that its target would have stayed cool.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import Heat
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MoveSpec


class SourceFate(Enum):
    """What became of the card that the pod would have been moved off; also a metric label."""

    HOT = "hot"  # so the move would have had something to relieve
    COOLED = "cooled"  # by itself: the move would have disturbed a pod for nothing
    UNKNOWN = "unknown"


class TargetFate(Enum):
    """What would have become of the target with the pod on it; also a metric label."""

    COOL = "cool"
    HEATED = "heated"  # its own load and the pod's together are above the hot line
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A dry-run move in hindsight; it was right if the source is hot and the target cool."""

    move: MoveSpec
    source: SourceFate
    target: TargetFate


def outcomes(
    state: DisruptionState, *, policy: RebalancerPolicy, since: datetime, now: datetime
) -> list[Outcome]:
    """Return what became of the moves that were only shown, and are due after *since*.

    They are due when real ones would have been verified at the earliest.
    """
    settle = timedelta(seconds=policy.settle_s)
    return [
        Outcome(
            move=past_move.spec,
            source=_source(state, past_move.spec.source.card),
            target=_target(state, past_move.spec, policy),
        )
        for past_move in state.past
        if past_move.only_shown and since < past_move.planned_at + settle <= now
    ]


def _source(state: DisruptionState, card: CardUuid) -> SourceFate:
    heat = state.heat.get(card)
    if heat is None or state.reading(card) is None:
        return SourceFate.UNKNOWN
    return SourceFate.HOT if heat.heat in (Heat.HOT, Heat.RELIEVING) else SourceFate.COOLED


def _target(state: DisruptionState, move: MoveSpec, policy: RebalancerPolicy) -> TargetFate:
    reading = state.reading(move.target.card)
    if reading is None:
        return TargetFate.UNKNOWN
    heated = reading.level_ratio + move.reason.busy_ratio > policy.hot_ratio
    return TargetFate.HEATED if heated else TargetFate.COOL
