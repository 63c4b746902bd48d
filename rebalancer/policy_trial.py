"""Tries an edited policy on the last state of the cluster before it is taken."""

from datetime import datetime

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.config import parse_policy


class PolicyTrial:
    """Remembers the state of the last cycle; before the first one only the text is checked."""

    def __init__(self) -> None:
        self._last: tuple[DisruptionState, datetime] | None = None

    def remember(self, state: DisruptionState, *, now: datetime) -> None:
        """Try the next policies on *state*."""
        self._last = (state, now)

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
