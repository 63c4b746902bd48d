"""The log of decisions: what was decided and why not; once, in bounded lines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from msgspec import structs

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import Mode
from rebalancer.decisions import DecisionLog
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_placed_pod,
    a_reading,
)


class Written:
    """What one process logs."""

    def __init__(self) -> None:
        self.log = DecisionLog()

    def cycle(
        self, state: DisruptionState, plan: Plan | None = None, *, later_s: float = 0
    ) -> Sequence[Mapping[str, Any]]:
        """Write one cycle; return its lines."""
        now = NOON + timedelta(seconds=later_s)
        found = plan if plan is not None else plan_moves(state, policy=ACTIVE, now=now)
        with structlog.testing.capture_logs() as lines:
            self.log.write(
                state, found, queried_at_s=1234.5, policy=ACTIVE, mode=Mode.ACTIVE, now=now
            )
        return lines


def test_a_line_says_when_it_asked_and_by_which_policy() -> None:
    (decision,) = Written().cycle(a_disruption_state())

    assert decision["event"] == "decided"
    assert decision["queried_at_s"] == 1234.5
    assert (decision["config"], decision["mode"]) == (ACTIVE.digest, "active")


def test_a_decision_to_move_has_the_score_and_every_other_candidate() -> None:
    state = a_disruption_state()
    plan = plan_moves(state, policy=ACTIVE, now=NOON)
    rule = HoldReason.OUTSCORED
    other = HeldBack(
        subject="ml/pod-b", reason=rule, detail="3.5 points", card=HOT_CARD, gain_points=3.5
    )

    (decision,) = Written().cycle(state, replace(plan, held=(other,)))

    assert decision["card"] == "n1/0"
    assert decision["outcome"] == "move"
    assert decision["target"] == "n2/0"
    chosen, held = decision["candidates"]
    assert chosen["subject"] == "ml/pod-a"
    assert chosen["gain_points"] == plan.moves[0].reason.gain_points
    assert held == {
        "subject": "ml/pod-b",
        "refused_by": "outscored",
        "gain_points": 3.5,
        "detail": "3.5 points",
    }


def test_a_decision_says_which_targets_lack_history_and_how_long_they_will() -> None:
    new = replace(a_reading(0.05), history_ratio=0.3)

    (decision,) = Written().cycle(a_disruption_state(readings={COOL_CARD: new}))

    assert {(part["refused_by"], part["detail"]) for part in decision["candidates"]} == {
        (
            "no_target",
            "1 cool card with room lacks history; the first can be a target in 30 min",
        )
    }


def test_a_card_that_keeps_its_pods_has_the_first_rule_that_refused_each() -> None:
    state = a_disruption_state()
    held = (
        HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.NEVER),
        HeldBack(subject="ml/pod-b", card=HOT_CARD, reason=HoldReason.NO_TARGET),
        HeldBack(subject=COOL_CARD, reason=HoldReason.ONE_POD_ALONE),
        HeldBack(subject="cluster", reason=HoldReason.HOURLY_BUDGET),
    )

    decisions = Written().cycle(state, Plan(held=held))

    assert {
        entry["card"]: [(part["subject"], part["refused_by"]) for part in entry["candidates"]]
        for entry in decisions
    } == {
        "n1/0": [("ml/pod-a", "never"), ("ml/pod-b", "no_target")],
        "n2/0": [(COOL_CARD, "one_pod_alone")],
        "cluster": [("cluster", "hourly_budget")],
    }
    assert {entry["outcome"] for entry in decisions} == {"held"}


def test_a_decision_is_written_when_it_changes_and_every_ten_minutes() -> None:
    state = a_disruption_state()
    young = Plan(
        held=(
            HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.TOO_YOUNG, detail="1 s"),
        )
    )
    older = Plan(
        held=(
            HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.TOO_YOUNG, detail="2 s"),
        )
    )
    never = Plan(held=(HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.NEVER),))

    written = Written()
    counts = [
        len(written.cycle(state, plan, later_s=later_s))
        for later_s, plan in ((0, young), (15, older), (30, never), (45, never), (631, never))
    ]
    assert counts == [1, 0, 1, 0, 1]
    assert written.cycle(state, Plan(), later_s=640) == []
    assert len(written.cycle(state, never, later_s=650)) == 1  # it had ended meanwhile


def test_a_decision_for_another_target_is_another_decision() -> None:
    state = a_disruption_state()
    plan = plan_moves(state, policy=ACTIVE, now=NOON)
    other = replace(plan, moves=(structs.replace(plan.moves[0], target=plan.moves[0].source),))

    written = Written()

    assert [len(written.cycle(state, each)) for each in (plan, plan, other)] == [1, 0, 1]


def test_a_line_is_bounded_whatever_the_names_and_how_many_there_are() -> None:
    pods = [a_placed_pod(f"{'p' * 240}-{number}") for number in range(300)]
    state = a_disruption_state(pods=pods)
    long = "é" * 5000
    held = tuple(
        HeldBack(
            subject=f"ml/{pod.info.record.name}",
            reason=HoldReason.NO_TARGET,
            detail=long,
            card=HOT_CARD,
        )
        for pod in pods
    )

    (decision,) = Written().cycle(state, Plan(held=held))

    assert len(decision["candidates"]) == 50
    assert decision["more"] == 250
    assert len(repr(decision)) < 64 * 1024


def test_of_very_many_new_decisions_some_are_written_in_the_next_cycle() -> None:
    cards = tuple(HeldBack(subject=f"GPU-{n}", reason=HoldReason.NO_TARGET) for n in range(150))
    written = Written()

    found = [written.cycle(a_disruption_state(), Plan(held=cards)) for _ in range(3)]

    assert [len(lines) for lines in found] == [100, 50, 0]
