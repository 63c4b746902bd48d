"""The interface of a method: one reason for which pods are moved.

The planner asks every method in turn and keeps the budgets that they share; a method says whom it
would help, finds the moves, and looks at each again before a pod is disturbed.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MoveSpec


class Method(Protocol):
    """What a method's module has to offer."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a module's constant
        """The method's name, as its moves carry it: letters, digits and dashes."""

    def subjects(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
    ) -> Sequence[str]:
        """Return whom to help, most urgent first: cards by UUID, or waiting pods by UID."""
        ...

    def plan_for(
        self,
        state: DisruptionState,
        subject: str,
        held: list[HeldBack],
        *,
        policy: RebalancerPolicy,
        now: datetime,
    ) -> tuple[MoveSpec, ...]:
        """Return the best plan for *subject*, or nothing; every refusal on the way goes to *held*.

        A plan is proven as a whole, and its moves begin together. If some of them are given up,
        the method is asked for the rest of the plan.
        """
        ...

    def why_outdated(
        self, state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
    ) -> HeldBack | None:
        """Return why a move that this method planned should not be made any more, or None.

        The target may be another card by now; what must still be true is that there is one.
        """
        ...
