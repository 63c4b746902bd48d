"""The planner asks the methods of the table, and the one that planned a move judges it again."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods import hot_card
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.planner import METHODS, plan_moves, validate_move
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MoveSpec
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, COOL_CARD, HOT_CARD, a_disruption_state, a_move


class EmptyACard:
    """Takes pods off the cool card and finds every move right, or says so where it holds still."""

    NAME = "empty-a-card"

    def subjects(
        self, state: DisruptionState, *, policy: RebalancerPolicy, now: datetime
    ) -> Sequence[str]:
        return [COOL_CARD] if COOL_CARD in state.cards() else []

    def plan_for(
        self,
        state: DisruptionState,
        subject: str,
        held: list[HeldBack],
        *,
        policy: RebalancerPolicy,
        now: datetime,
    ) -> tuple[MoveSpec, ...]:
        held.append(HeldBack(subject=subject, reason=HoldReason.NO_TARGET))
        return ()

    def why_outdated(
        self, state: DisruptionState, move: MoveSpec, *, policy: RebalancerPolicy, now: datetime
    ) -> HeldBack | None:
        return None


def test_every_method_has_a_name_of_its_own_that_fits_into_a_record() -> None:
    names = [it.NAME for it in METHODS]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in names)


def test_the_planner_asks_methods_in_their_order_and_counts_their_moves_together() -> None:
    policy, one = (replace(ACTIVE, max_in_flight=most) for most in (2, 1))

    first = plan_moves(
        a_disruption_state(), policy=policy, now=NOON, methods=(EmptyACard(), hot_card)
    )
    alone = plan_moves(a_disruption_state(), policy=one, now=NOON, methods=(hot_card, EmptyACard()))

    assert [it.subject for it in first.held][:1] == [COOL_CARD]
    assert [(it.source.card, it.method) for it in first.moves] == [(HOT_CARD, "hot-card")]
    # One move is all that may be under way, so the second method is not asked any more.
    assert [it.reason for it in alone.held][-1] is HoldReason.MOVE_IN_FLIGHT
    assert len(alone.moves) == 1


class EmptyTheNode(EmptyACard):
    """Wants every pod of a node moved, in one plan."""

    NAME = "empty-the-node"

    def plan_for(
        self,
        state: DisruptionState,
        subject: str,
        held: list[HeldBack],
        *,
        policy: RebalancerPolicy,
        now: datetime,
    ) -> tuple[MoveSpec, ...]:
        return tuple(
            a_move(pod_uid=uid, name=uid, method=self.NAME, plan="all") for uid in ("a", "b", "c")
        )


def test_the_moves_of_a_plan_begin_together_and_no_other_plan_beside_it() -> None:
    policy = replace(ACTIVE, max_in_flight=1)

    plan = plan_moves(
        a_disruption_state(), policy=policy, now=NOON, methods=(EmptyTheNode(), hot_card)
    )

    assert [it.pod.uid for it in plan.moves] == ["a", "b", "c"]
    assert [it.reason for it in plan.held] == [HoldReason.MOVE_IN_FLIGHT]


def test_a_move_is_judged_again_by_the_method_that_planned_it() -> None:
    picture = a_disruption_state(readings={HOT_CARD: None})

    def judged(by: str) -> HeldBack | None:
        methods = (hot_card, EmptyACard())
        asked = a_move(method=by)
        return validate_move(picture, asked, policy=ACTIVE, now=NOON, methods=methods)

    assert judged("empty-a-card") is None
    unmeasured = judged("hot-card")
    assert unmeasured is not None
    assert unmeasured.reason is HoldReason.NOT_MEASURED
    unknown = judged("tidy-up")
    assert unknown is not None
    assert unknown.reason is HoldReason.NO_GAIN
    assert unknown.detail == "this version has no method 'tidy-up'"
