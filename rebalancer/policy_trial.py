"""Tries an edited policy on the last state of the cluster before it is taken."""

from dataclasses import replace
from datetime import datetime

from fracgpu.disruption.cool_cards import PlanIndex
from fracgpu.disruption.disruption_state import DisruptionState, OwnerIndex
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.placement.snapshot_index import SnapshotIndex
from rebalancer.config import parse_policy


class PolicyTrial:
    """Remembers the state of the last cycle; before the first one only the text is checked."""

    def __init__(self) -> None:
        self._last: tuple[DisruptionState, datetime] | None = None
        self._index = SnapshotIndex()  # its own: a plan may be under way in another thread

    def remember(self, state: DisruptionState, *, now: datetime) -> None:
        """Try the next policies on *state*."""
        own = replace(state, index=self._index, plan_index=PlanIndex(), owners=OwnerIndex())
        self._last = (own, now)

    def parse(self, text: str) -> RebalancerPolicy:
        """Return the policy in *text*, with which a plan could be made for the last state.

        Raises:
            ValueError: the text has mistakes, or planning failed.
        """
        policy = parse_policy(text)
        if self._last is not None:
            state, now = self._last
            try:
                plan_moves(state, policy=policy, now=now)
            except Exception as error:  # whatever it is, the policy in use does not raise it
                raise ValueError(
                    f"tried on the last state, planning fails: {type(error).__name__}: {error}"
                ) from error
        return policy
