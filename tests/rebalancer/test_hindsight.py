"""Dry-run moves in hindsight: both claims of each are checked, once, and memory is bounded."""

from datetime import timedelta

import pytest

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import Heat
from rebalancer.hindsight import Hindsight, SourceFate, TargetFate
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_reading,
)

DUE = NOON + timedelta(seconds=ACTIVE.settle_s)


def judged(state: DisruptionState) -> tuple[SourceFate, TargetFate]:
    hindsight = Hindsight()
    hindsight.remember(a_move(), planned_at=NOON)
    (outcome,) = hindsight.outcomes(state, policy=ACTIVE, now=DUE)
    assert outcome.move == a_move()
    return outcome.source, outcome.target


def test_a_dry_run_is_judged_once_and_not_before_its_time() -> None:
    hindsight, state = Hindsight(), a_disruption_state()
    hindsight.remember(a_move(), planned_at=NOON)

    assert hindsight.outcomes(state, policy=ACTIVE, now=DUE - timedelta(seconds=1)) == []
    assert len(hindsight.outcomes(state, policy=ACTIVE, now=DUE)) == 1
    assert hindsight.outcomes(state, policy=ACTIVE, now=DUE) == []


def test_a_source_still_hot_and_a_target_still_cool_make_it_right() -> None:
    assert judged(a_disruption_state()) == (SourceFate.HOT, TargetFate.COOL)


@pytest.mark.parametrize("heat", [Heat.COOL, Heat.SETTLING, Heat.WARMING])
def test_a_source_that_cooled_by_itself_makes_it_wrong(heat: Heat) -> None:
    state = a_disruption_state(heat={HOT_CARD: heat})

    assert judged(state)[0] is SourceFate.COOLED


def test_a_target_that_the_pod_would_have_made_hot_makes_it_wrong() -> None:
    """The pod uses 45 % of its card, and hot begins at 80 %."""
    just_cool = a_disruption_state(readings={COOL_CARD: a_reading(0.34)})
    heated = a_disruption_state(readings={COOL_CARD: a_reading(0.36)})

    assert judged(just_cool)[1] is TargetFate.COOL
    assert judged(heated)[1] is TargetFate.HEATED


def test_what_is_not_measured_then_is_not_judged() -> None:
    state = a_disruption_state(readings={HOT_CARD: None, COOL_CARD: None})

    assert judged(state) == (SourceFate.UNKNOWN, TargetFate.UNKNOWN)


def test_at_most_a_thousand_are_remembered() -> None:
    hindsight = Hindsight()
    for number in range(1200):
        hindsight.remember(a_move(name=f"pod-{number}"), planned_at=NOON)

    found = hindsight.outcomes(a_disruption_state(), policy=ACTIVE, now=DUE)

    assert [outcome.move.name for outcome in (found[0], found[-1])] == ["pod-200", "pod-1199"]
    assert len(found) == 1000
