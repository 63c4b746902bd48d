"""The method for a pod that waits: few moves, proven as a whole, that free the cards it needs."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import disruption_cost
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods import make_room
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.planner import plan_moves, validate_move
from fracgpu.disruption.policy import MakeRoom, Mode, RebalancerPolicy
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.request.need import Gang
from fracgpu.state.move_object import MoveMode, MovePhase, MoveSpec
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    a_cluster,
    a_placed_pod,
    a_reading,
    a_small_pod,
    a_waiting_pod,
    begun,
)

MAKE_ROOM = replace(
    ACTIVE,
    make_room=MakeRoom.ACTIVE,
    max_in_flight=3,
    max_per_namespace_per_hour=10,
)
METHODS = (make_room,)
# Each card has room for a share, none for a whole card.
FRAGMENTED = {"n1": {"a0": 4000}, "n2": {"b0": 8000}, "n3": {"c0": 9000}}


def plan(state: DisruptionState, policy: RebalancerPolicy = MAKE_ROOM) -> Plan:
    return plan_moves(state, policy=policy, now=NOON, methods=METHODS)


def validate(
    state: DisruptionState, move: MoveSpec, policy: RebalancerPolicy = MAKE_ROOM
) -> HeldBack | None:
    return validate_move(state, move, policy=policy, now=NOON, methods=METHODS)


def reasons(found: Plan) -> list[HoldReason]:
    return [held.reason for held in found.held]


def ends(found: Plan) -> list[tuple[str, str, str]]:
    return [(move.pod.uid, move.source.card, move.target.card) for move in found.moves]


def subjects(*waiting: Any, policy: RebalancerPolicy = MAKE_ROOM) -> list[str]:
    state = a_cluster(FRAGMENTED, *waiting)
    return list(make_room.subjects(state, policy=policy, now=NOON))


# Who waits


def test_the_most_important_pod_that_waits_longest_comes_first() -> None:
    late = NOON - timedelta(minutes=20)
    pods = (
        a_waiting_pod("late", unschedulable_since=late),
        a_waiting_pod("early"),
        a_waiting_pod("important", unschedulable_since=late, priority=5),
    )
    assert subjects(*pods) == ["important", "early", "late"]


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"unschedulable_since": None}, id="gated, or not tried yet"),
        pytest.param({"unschedulable_since": NOON - timedelta(minutes=1)}, id="lately"),
        pytest.param({"nominated_node": "n1"}, id="preemption makes room"),
        pytest.param({"scheduler_name": "other"}, id="another scheduler's"),
        pytest.param({"node": "n1"}, id="bound"),
        pytest.param({"need": None}, id="needs no card"),
        pytest.param({"gang": Gang("train", 4)}, id="of a gang"),
        pytest.param({"pod_group": "train"}, id="of a PodGroup"),
    ],
)
def test_a_pod_that_does_not_wait_for_room_is_no_subject(facts: dict[str, Any]) -> None:
    assert subjects(a_waiting_pod(**facts)) == []


@pytest.mark.parametrize(
    ("mode", "make", "planned"),
    [
        (Mode.ACTIVE, MakeRoom.OFF, False),
        (Mode.ACTIVE, MakeRoom.RECOMMEND, True),
        (Mode.ACTIVE, MakeRoom.ACTIVE, True),
        (Mode.DRY_RUN, MakeRoom.OFF, True),  # to show what there would be
        (Mode.OFF, MakeRoom.ACTIVE, False),
    ],
)
def test_off_plans_nothing_but_what_a_dry_run_shows(
    mode: Mode, make: MakeRoom, planned: bool
) -> None:
    policy = replace(MAKE_ROOM, mode=mode, make_room=make)
    assert bool(plan(a_cluster(FRAGMENTED, a_waiting_pod()), policy).moves) == planned


def test_off_is_the_default() -> None:
    assert RebalancerPolicy().make_room is MakeRoom.OFF


# The plan


def test_a_whole_card_pod_on_scattered_room_gets_the_card_that_is_cheapest_to_free() -> None:
    (move,) = plan(a_cluster(FRAGMENTED, a_waiting_pod())).moves

    # Packed: the fullest card that has room.
    assert (move.pod.uid, move.source.card, move.target.card) == ("p-a0", "a0", "c0")
    assert (move.method, move.plan, move.mode) == (
        "make-room",
        "make-room-big",
        MoveMode.EVICT,
    )
    kept = move.beneficiary
    assert kept is not None
    assert (kept.namespace, kept.name, kept.uid, kept.cards) == ("ml", "big", "big", ("a0",))
    assert kept.held_until == NOON + timedelta(seconds=MAKE_ROOM.make_room_hold_s)


def test_a_move_says_which_pod_it_is_what_it_uses_and_what_it_gains() -> None:
    busy = a_reading(0.3, pods={"p-a0": 0.2})
    state = a_cluster(FRAGMENTED, a_waiting_pod(), readings={"a0": busy})
    (move,) = plan(state).moves

    assert (move.pod.key, move.owner.uid) == ("ml/p-a0", "owner-p-a0")
    assert (move.reason.busy_ratio, move.reason.level_ratio) == (0.2, 0.3)
    # A sixth of a card of 24,000 MiB, less what it costs to move a pod of 4,000 MiB.
    cost = disruption_cost(state, state.pods["p-a0"], mib=4000)
    assert move.reason.gain_points == pytest.approx(100 / 6 - cost)


def test_a_pod_of_several_cards_gets_them_on_one_node_and_the_idle_ones_are_kept_too() -> None:
    held = {"n1": {"a0": 4000, "a1": 0, "a2": 20_000}, "n2": {"b0": 8000}, "n3": {"c0": 9000}}
    (move,) = plan(a_cluster(held, a_waiting_pod(cards=2))).moves

    assert (move.source.card, move.source.node) == ("a0", "n1")
    assert move.beneficiary is not None
    assert set(move.beneficiary.cards) == {"a0", "a1"}


def test_a_plan_has_no_more_moves_than_are_allowed() -> None:
    targets = {f"t{n}": {f"t{n}0": 12_000} for n in range(4)}
    three = {"n1": {"a0": 5000, "a1": 5000, "a2": 5000, "a3": 0}, **targets}
    four = {"n1": {"a0": 5000, "a1": 5000, "a2": 5000, "a3": 5000}, **targets}

    at_most = replace(MAKE_ROOM, make_room_moves=3)
    found = plan(a_cluster(three, a_waiting_pod(cards=4)), at_most)
    assert len(found.moves) == 3
    assert len({move.target for move in found.moves}) == 3
    assert {move.plan for move in found.moves} == {"make-room-big"}

    refused = plan(a_cluster(four, a_waiting_pod(cards=4)), at_most)
    assert refused.moves == ()
    assert reasons(refused) == [HoldReason.NO_ROOM]


def test_no_room_says_how_many_cards_only_lack_history_and_when_the_first_has_it() -> None:
    new = replace(a_reading(0.1), history_ratio=0.7)
    young = {"n1": {"a0": 4000}, "n2": {"b0": 8000}, "n3": {"c0": 9000}}
    readings = {"a0": new, "b0": new, "c0": replace(new, history_ratio=0.5)}

    (held,) = plan(a_cluster(young, a_waiting_pod(), readings=readings)).held

    assert held.reason is HoldReason.NO_ROOM
    assert held.detail == (
        "3 cool cards with room lack history; the first can be a target in 7 min"
    )


def test_a_pod_is_not_moved_for_a_less_important_one() -> None:
    pods = [
        a_small_pod("p-a0", "a0", node="n1", priority=10),
        a_small_pod("p-b0", "b0", node="n2", priority=10),
    ]
    held = {"n1": {"a0": 0}, "n2": {"b0": 0}}

    def planned(priority: int) -> int:
        waiting = a_waiting_pod(priority=priority)
        return len(plan(a_cluster(held, pods=[*pods, waiting])).moves)

    assert [planned(9), planned(10)] == [0, 1]


def test_a_pod_with_rules_that_nobody_evaluates_gets_no_room() -> None:
    waiting = a_waiting_pod(rules=SchedulingConstraints(unjudged=("hostPath",)))
    assert reasons(plan(a_cluster(FRAGMENTED, waiting))) == [HoldReason.UNJUDGED]


# Budgets

TWO_MOVES = {"n1": {"a0": 4000, "a1": 5000}, "n2": {"b0": 9000}, "n3": {"c0": 9000}}

BUDGETS = ("max_in_flight", "max_per_hour", "max_per_namespace_per_hour")


@pytest.mark.parametrize("budget", [*BUDGETS, "max_per_day"])
def test_a_plan_counts_as_one_move_against_the_budgets(budget: str) -> None:
    changes: dict[str, Any] = {budget: 1}
    policy = replace(MAKE_ROOM, **changes)
    state = a_cluster(TWO_MOVES, a_waiting_pod(cards=2), a_waiting_pod("other"))

    found = plan(state, policy)

    assert {move.plan for move in found.moves} == {"make-room-big"}
    assert len(found.moves) == 2
    # Both are right still when they are looked at again, one beside the other.
    first, second = found.moves
    assert validate(replace(state, past=(begun(first),)), second, policy) is None


def test_a_plan_takes_no_two_pods_of_one_owner_but_finds_others() -> None:
    """An owner that is moved must have all its pods ready, so its pods move one after the other."""
    held = {"n1": dict.fromkeys(("a0", "a1", "a2", "a3", "a4", "a5"), 0)}
    free = {"n2": dict.fromkeys(("b0", "b1", "b2"), 9000)}
    owner = ("ReplicaSet", "web", "owner-web")
    replicas = [
        a_placed_pod(f"web-{card}", CardUuid(card), node="n1", mib=4000, owner=owner)
        for card in ("a0", "a1", "a2", "a3", "a4")
    ]
    other = a_small_pod("api", "a5", node="n1")
    state = a_cluster(held | free, *replicas, other, a_waiting_pod(cards=2))

    found = plan(state)

    assert len(found.moves) == 2
    assert {move.owner.uid for move in found.moves} == {"owner-web", "owner-api"}
    assert found.held == ()


def test_a_plan_of_which_a_move_was_given_up_goes_on_with_the_cards_that_are_kept() -> None:
    state = a_cluster(TWO_MOVES, a_waiting_pod(cards=2))
    first, given_up = plan(state).moves

    under_way = replace(state, past=(begun(first),))
    assert plan(under_way, replace(MAKE_ROOM, max_in_flight=1)).moves == ()
    (second,) = plan(under_way, replace(MAKE_ROOM, max_in_flight=2)).moves

    assert second == given_up
    both = replace(state, past=(begun(first), begun(second)))
    assert reasons(plan(both)) == [HoldReason.ROOM_KEPT]


def test_a_begun_plan_comes_before_a_more_important_pod() -> None:
    state = a_cluster(TWO_MOVES, a_waiting_pod(cards=2))
    first, _ = plan(state).moves
    important = a_waiting_pod("important", priority=9)
    later = replace(state, pods={**state.pods, "important": important}, past=(begun(first),))
    assert list(make_room.subjects(later, policy=MAKE_ROOM, now=NOON)) == ["big", "important"]


def test_kept_cards_are_nobody_elses_room_and_no_target() -> None:
    # With a0 kept for the first pod, the only plan for another frees b0 or c0.
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (first,) = plan(state).moves
    gone = {uid: pod for uid, pod in state.pods.items() if uid != "p-a0"}
    other = a_waiting_pod("other")
    later = replace(
        state,
        snapshot=state.snapshot.without("p-a0"),
        pods={**gone, "other": other},
        past=(begun(first, minutes_ago=11, phase=MovePhase.DONE),),
    )
    assert ends(plan(later)) == [("p-b0", "b0", "c0")]


def test_no_second_plan_is_made_for_a_pod_whose_room_did_not_help() -> None:
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (move,) = plan(state).moves

    def at(minutes_ago: float) -> Plan:
        until = NOON + timedelta(seconds=MAKE_ROOM.make_room_hold_s, minutes=-minutes_ago)
        assert move.beneficiary is not None
        kept = structs.replace(move.beneficiary, held_until=until)
        done = begun(
            structs.replace(move, beneficiary=kept), minutes_ago=minutes_ago, phase=MovePhase.DONE
        )
        return plan(replace(state, past=(done,)))

    assert reasons(at(29)) == [HoldReason.ROOM_KEPT]
    assert reasons(at(31)) == [HoldReason.ROOM_TRIED]
    assert at(61).moves


# Looked at again before the first step


def test_a_move_is_right_while_the_pod_waits_and_the_plan_still_holds() -> None:
    state = a_cluster(TWO_MOVES, a_waiting_pod(cards=2))
    first, second = plan(state).moves
    assert validate(state, first) is None
    assert validate(replace(state, past=(begun(first),)), second) is None


def test_a_move_is_wrong_once_its_pod_does_not_wait_any_more() -> None:
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (move,) = plan(state).moves
    started = {**state.pods, "big": a_waiting_pod(node="n9")}
    gone = {uid: pod for uid, pod in state.pods.items() if uid != "big"}
    for pods in (started, gone):
        refused = validate(replace(state, pods=pods), move)
        assert refused is not None
        assert refused.reason is HoldReason.NOT_WAITING


def test_a_move_is_wrong_once_its_own_pod_is_gone_or_holds_another_card() -> None:
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (move,) = plan(state).moves
    gone = {uid: pod for uid, pod in state.pods.items() if uid != move.pod.uid}
    for changed in (
        replace(state, pods=gone),
        replace(state, snapshot=state.snapshot.without(move.pod.uid)),
        replace(state, snapshot=a_cluster({"n1": {"a1": 4000}}).snapshot),
    ):
        assert validate(changed, move) == HeldBack(
            subject=move.pod.key, reason=HoldReason.NOT_KNOWN
        )


def test_a_move_is_wrong_once_the_room_it_would_make_is_not_enough() -> None:
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (move,) = plan(state).moves
    joined = a_cluster(
        FRAGMENTED, a_waiting_pod(), a_small_pod("new", "a0", node="n1", started_at=NOON)
    )
    refused = validate(joined, move)
    assert refused is not None
    assert refused.reason is HoldReason.NO_ROOM


def test_a_move_is_wrong_once_its_own_pod_may_not_be_moved() -> None:
    state = a_cluster(FRAGMENTED, a_waiting_pod())
    (move,) = plan(state).moves
    pod = state.pods["p-a0"]
    unready = replace(pod, info=replace(pod.info, ready=False))
    refused = validate(replace(state, pods={**state.pods, "p-a0": unready}), move)
    assert refused is not None
    assert refused.reason is HoldReason.NOT_READY
