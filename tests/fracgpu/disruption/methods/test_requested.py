"""What people ask for is moved, unless something protects the pod."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods import requested
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.planner import plan_moves, validate_move
from fracgpu.request.need import Rebalance
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_node,
    a_past_move,
    a_placed_pod,
    a_reading,
)

ASKED = {names.MOVE_REQUESTED: "2026-01-05T12:00:00Z"}


def a_calm_state(*, drained: bool = False, **facts: Any) -> DisruptionState:
    """Return two idle cards; pod-a and pod-b are on the first."""
    source = replace(
        a_node("n1", HOT_CARD), drained=frozenset({CardUuid(HOT_CARD)} if drained else ())
    )
    return a_disruption_state(
        nodes=(source, a_node("n2", COOL_CARD)),
        pods=[a_placed_pod("pod-a", **facts), a_placed_pod("pod-b")],
        readings={HOT_CARD: a_reading(0.1, pods={"pod-a": 0.05, "pod-b": 0.05})},
    )


def test_a_pod_is_moved_that_people_ask_for_however_calm_its_card_is() -> None:
    # Young, and its namespace had its moves: that only keeps moves few.
    state = a_calm_state(annotations=ASKED, started_at=NOON - timedelta(seconds=60))
    state = replace(state, past=[a_past_move(minutes_ago=20, owner_uid="owner-1")])

    (move,) = plan_moves(state, policy=ACTIVE, now=NOON).moves

    assert (move.pod.uid, move.method) == ("pod-a", requested.NAME)
    assert (move.source.card, move.target.card) == (HOT_CARD, COOL_CARD)
    assert validate_move(state, move, policy=ACTIVE, now=NOON) is None


def test_a_drained_card_is_emptied_replica_by_replica() -> None:
    state = a_calm_state(drained=True)

    assert requested.subjects(state, policy=ACTIVE, now=NOON) == ["pod-a", "pod-b"]
    (move,) = plan_moves(state, policy=ACTIVE, now=NOON).moves
    assert move.pod.uid == "pod-a"
    assert plan_moves(a_calm_state(), policy=ACTIVE, now=NOON).moves == ()


def test_a_pod_that_people_ask_for_comes_before_those_of_a_drained_card() -> None:
    state = a_calm_state(drained=True)
    asked = {"pod-b": a_placed_pod("pod-b", annotations=ASKED)}

    found = requested.subjects(
        replace(state, pods={**state.pods, **asked}), policy=ACTIVE, now=NOON
    )

    assert found == ["pod-b", "pod-a"]


def test_the_target_is_the_calmest_card_whichever_the_scheduler_would_choose() -> None:
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "GPU-warm"), a_node("n3", "GPU-idle")]
    warm = a_placed_pod("pod-c", CardUuid("GPU-warm"), node="n2", owner=None)
    state = a_disruption_state(
        nodes=nodes,
        pods=[a_placed_pod("pod-a", annotations=ASKED), a_placed_pod("pod-b"), warm],
        readings={
            HOT_CARD: a_reading(0.1, pods={"pod-b": 0.05}),
            "GPU-warm": a_reading(0.14, pods={"pod-c": 0.1}),
            "GPU-idle": a_reading(0.01),
        },
    )

    (move,) = plan_moves(state, policy=ACTIVE, now=NOON).moves

    # Nothing is measured of what it uses.
    assert (move.pod.uid, move.target.card) == ("pod-a", "GPU-idle")
    assert move.reason.busy_ratio == 0.0


def test_what_protects_a_pod_protects_it_here() -> None:
    state = a_calm_state(annotations=ASKED, rebalance=Rebalance.NEVER)

    plan = plan_moves(state, policy=ACTIVE, now=NOON)

    assert plan.moves == ()
    assert [held.reason for held in plan.held] == [HoldReason.NEVER]


def test_a_pod_without_a_target_is_held_and_a_move_that_ended_is_not_tried_at_once() -> None:
    asked = a_calm_state(annotations=ASKED)
    full = replace(asked, heat={HOT_CARD: asked.heat[CardUuid(HOT_CARD)]})
    tried, other = (
        a_past_move(
            minutes_ago=2,
            pod_uid=uid,
            owner_uid="owner-1",
            ended_at=NOON - timedelta(minutes=1),
        )
        for uid in ("pod-a", "pod-x")
    )

    assert [held.reason for held in plan_moves(full, policy=ACTIVE, now=NOON).held] == [
        HoldReason.NO_TARGET
    ]
    plan = plan_moves(replace(asked, past=[tried]), policy=ACTIVE, now=NOON)
    assert [held.reason for held in plan.held] == [HoldReason.GIVEN_UP]
    later = plan_moves(replace(asked, past=[tried]), policy=ACTIVE, now=NOON + timedelta(minutes=5))
    assert len(later.moves) == 1
    assert len(plan_moves(replace(asked, past=[other]), policy=ACTIVE, now=NOON).moves) == 1


def test_a_pod_whose_card_is_in_another_node_by_now_is_held() -> None:
    """A node that was installed anew under another name comes before the old one goes."""
    state = a_disruption_state(
        nodes=[a_node("n1", "GPU-new"), a_node("n3", HOT_CARD), a_node("n2", COOL_CARD)],
        pods=[a_placed_pod("pod-a", annotations=ASKED), a_placed_pod("pod-b")],
        readings={"GPU-new": a_reading(), HOT_CARD: a_reading()},
    )

    plan = plan_moves(state, policy=ACTIVE, now=NOON)

    assert [(held.subject, held.reason) for held in plan.held] == [
        ("ml/pod-a", HoldReason.CARD_GONE)
    ]


def test_a_move_whose_pod_has_left_its_card_is_outdated() -> None:
    state = a_calm_state(annotations=ASKED)
    (move,) = plan_moves(state, policy=ACTIVE, now=NOON).moves
    gone = replace(state, pods={})

    held = validate_move(gone, move, policy=ACTIVE, now=NOON)

    assert held is not None
    assert held.reason is HoldReason.NOT_KNOWN
