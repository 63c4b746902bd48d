"""Looks back at dry-run moves: was each right, as far as what happened without it can show?

A dry run changes nothing, so once a real move would have been verified, both of its claims can be
checked: that its source would still be hot, and that its target would have stayed cool. What is
remembered is lost when the process ends.
"""

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import Heat
from fracgpu.disruption.move import Move
from fracgpu.disruption.policy import RebalancerPolicy

_MOST: Final = 1000


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

    move: Move
    source: SourceFate
    target: TargetFate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    move: Move
    planned_at: datetime


class Hindsight:
    """Remembers the dry-run moves of which the outcome is not known yet, the newest thousand."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque(maxlen=_MOST)

    def remember(self, move: Move, *, planned_at: datetime) -> None:
        """Look at *move* again when a real one would have been verified at the earliest."""
        self._waiting.append(_Waiting(move=move, planned_at=planned_at))

    def outcomes(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
    ) -> list[Outcome]:
        """Return what became of the moves that are due now, and forget these."""
        before = now - timedelta(seconds=policy.settle_s)
        due = [waiting for waiting in self._waiting if waiting.planned_at <= before]
        if due:
            left = [waiting for waiting in self._waiting if waiting.planned_at > before]
            self._waiting = deque(left, maxlen=_MOST)
        return [
            Outcome(
                move=waiting.move,
                source=_source(state, waiting.move.source),
                target=_target(state, waiting.move, policy),
            )
            for waiting in due
        ]


def _source(state: DisruptionState, card: CardUuid) -> SourceFate:
    heat = state.heat.get(card)
    if heat is None or state.reading(card) is None:
        return SourceFate.UNKNOWN
    return SourceFate.HOT if heat.heat in (Heat.HOT, Heat.RELIEVING) else SourceFate.COOLED


def _target(state: DisruptionState, move: Move, policy: RebalancerPolicy) -> TargetFate:
    reading = state.reading(move.target)
    if reading is None:
        return TargetFate.UNKNOWN
    heated = reading.level_ratio + move.busy_ratio > policy.hot_ratio
    return TargetFate.HEATED if heated else TargetFate.COOL
