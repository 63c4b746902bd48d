"""An edited policy is tried on the last state before it is taken."""

from dataclasses import replace

import pytest

from fracgpu.disruption.policy import Mode
from rebalancer.config import PolicyTrial
from tests.fakes.clock import NOON
from tests.support.rebalancing import HOT_CARD, a_disruption_state


def test_before_the_first_cycle_only_the_text_is_checked() -> None:
    assert PolicyTrial().parse("mode: active").mode is Mode.ACTIVE
    with pytest.raises(ValueError, match="hotRatio is 80"):
        PolicyTrial().parse("hotRatio: 80")


def test_a_policy_with_which_a_plan_can_be_made_is_taken() -> None:
    trial = PolicyTrial()
    trial.remember(a_disruption_state(), now=NOON)

    assert trial.parse("mode: active\naggressiveness: 5").max_in_flight == 4


def test_a_policy_with_which_planning_fails_is_refused_and_the_error_is_told() -> None:
    trial = PolicyTrial()
    state = a_disruption_state()
    # A state that contradicts itself: a pod on the hot card that the ledger does not have.
    broken = replace(state, snapshot=replace(state.snapshot, pods={}))
    assert state.snapshot.card(HOT_CARD)
    trial.remember(broken, now=NOON)

    with pytest.raises(ValueError, match="tried on the last state, planning fails: KeyError: 'pod"):
        trial.parse("mode: active\nstartupGraceS: 0")
    assert trial.parse("mode: 'off'").mode is Mode.OFF
