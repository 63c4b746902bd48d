"""The interface of a method: one reason for which pods are moved.

The planner asks every method in turn and keeps the budgets that they share; a method says which
cards it would take a pod off, finds the move, and looks at it again before a pod is disturbed.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack, Move
from fracgpu.disruption.policy import RebalancerPolicy


class Method(Protocol):
    """What a method's module has to offer."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a module's constant
        """The method's name, as its moves carry it: letters, digits and dashes."""

    def cards(self, state: DisruptionState) -> Sequence[CardUuid]:
        """Return the cards to take a pod off, most urgent first."""
        ...

    def plan_for_card(
        self,
        state: DisruptionState,
        card: CardUuid,
        held: list[HeldBack],
        *,
        policy: RebalancerPolicy,
        now: datetime,
    ) -> Move | None:
        """Return the best move off *card*, or None; every refusal on the way goes to *held*."""
        ...

    def why_outdated(
        self, state: DisruptionState, move: Move, *, policy: RebalancerPolicy, now: datetime
    ) -> HeldBack | None:
        """Return why a move that this method planned should not be made any more, or None.

        The target may be another card by now; what must still be true is that there is one.
        """
        ...
