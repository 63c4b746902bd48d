"""The method for a hot card: the best pair of pod and target, or why there is none."""

from dataclasses import replace
from typing import Any

import pytest

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods.hot_card import subjects
from fracgpu.disruption.move import HoldReason, Plan
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.k8s.node import Taint
from fracgpu.request.need import Rebalance
from fracgpu.state.cluster_state import scheduling_by_cards
from fracgpu.state.move_object import Ending, Move, new_move
from fracgpu.state.reservation import reservation_of
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    CARD_MIB,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_history,
    a_node,
    a_past_move,
    a_placed_pod,
    a_reading,
    two_busy_pods,
)


def plan(state: DisruptionState, policy: RebalancerPolicy = ACTIVE) -> Plan:
    return plan_moves(state, policy=policy, now=NOON)


def reasons(found: Plan) -> set[HoldReason]:
    return {held.reason for held in found.held}


def test_one_of_two_busy_pods_moves_to_the_cool_card() -> None:
    found = plan(a_disruption_state())

    (move,) = found.moves
    assert (move.pod.key, move.source.card, move.target.card) == ("ml/pod-a", HOT_CARD, COOL_CARD)
    assert (move.source.node, move.target.node, move.request.mib) == ("n1", "n2", 4000)
    # A fifth of 90 - 80 %; relief of the 25 % above the clear line, less a quarter of the other 20;
    # an eviction, and 4000 MiB.
    assert move.reason.gain_points == pytest.approx(
        2 + 2 * (0.25 - 0.05) - 1 - 0.5 - 0.1 * 4000 / 10240
    )
    assert move.reason.saved_points == pytest.approx(2)


def test_a_pod_that_may_use_more_than_its_share_moves_to_where_it_may_as_well() -> None:
    pods = [a_placed_pod(uid, limit_mib=9000) for uid in ("pod-a", "pod-b")]

    def moves(*targets: NodeCards) -> list[tuple[str, int, int]]:
        nodes = (a_node("n1", HOT_CARD, limits_mib=CARD_MIB), *targets)
        found = plan(a_disruption_state(nodes=nodes, pods=pods)).moves
        for move in found:
            reserved = reservation_of(new_move(move, now=NOON))
            assert reserved is not None
            assert (reserved.node, reserved.card) == (move.target.node, move.target.card)
            assert (reserved.allocation.mib, reserved.allocation.limit_mib) == (4000, 9000)
        return [(move.target.card, move.request.mib, move.request.limit_mib) for move in found]

    taken = a_placed_pod("pod-c", COOL_CARD, node="n2", mib=CARD_MIB - 8999)
    assert moves(a_node("n2", COOL_CARD)) == []
    assert moves(a_node("n2", COOL_CARD, limits_mib=CARD_MIB)) == [(COOL_CARD, 4000, 9000)]
    pods.append(taken)
    assert moves(a_node("n2", COOL_CARD, limits_mib=CARD_MIB)) == []


def test_a_surge_costs_less_than_an_eviction_and_an_only_replica_no_more() -> None:
    def gain(**facts: Any) -> float:
        pods = [
            a_placed_pod(uid, owner=("ReplicaSet", "web", uid), **facts)
            for uid in ("pod-a", "pod-b")
        ]
        busy = a_reading(0.95, pods={"pod-a": 0.45, "pod-b": 0.45})
        (move,) = plan(a_disruption_state(pods=pods, readings={HOT_CARD: busy})).moves
        return move.reason.gain_points

    by_surge = gain(labels={"pod-template-hash": "5d4f"})
    by_eviction = gain(rebalance=Rebalance.EVICT)

    assert by_surge == pytest.approx(3 + 2 * (0.3 - 0.15 / 4) - 1 - 0.1 * 4000 / 10240)
    # An eviction ends the only replica before there is another.
    assert by_surge - by_eviction == pytest.approx(0.5 + 0.5)


def test_the_pod_whose_use_comes_nearest_to_the_excess_is_the_victim() -> None:
    pods = [a_placed_pod(uid) for uid in ("pod-a", "pod-b", "pod-c")]
    busy = {"pod-a": 0.12, "pod-b": 0.3, "pod-c": 0.48}
    state = a_disruption_state(pods=pods, readings={HOT_CARD: a_reading(0.9, pods=busy)})

    assert [move.pod.uid for move in plan(state).moves] == ["pod-b"]


def test_of_two_equal_pods_the_smaller_one_in_memory_is_the_victim() -> None:
    pods = [a_placed_pod("pod-a", mib=9000), a_placed_pod("pod-b", mib=1000)]

    assert [move.pod.uid for move in plan(a_disruption_state(pods=pods)).moves] == ["pod-b"]


def test_the_pod_that_uses_more_than_it_was_granted_goes_first() -> None:
    # pod-a was granted half of the card and uses 30 %; pod-b a tenth, and uses 20 %.
    pods = [a_placed_pod("pod-a", mib=12_000), a_placed_pod("pod-b", mib=2400)]
    pods += [a_placed_pod("pod-c", mib=4000)]
    busy = {"pod-a": 0.3, "pod-b": 0.2, "pod-c": 0.32}
    reading: dict[str, Any] = {HOT_CARD: a_reading(0.9, pods=busy)}
    by_memory = plan(a_disruption_state(pods=pods, readings=reading)).moves
    assert [move.pod.uid for move in by_memory] == ["pod-c"]

    keeps_to_it = a_placed_pod("pod-c", mib=9600)
    found = plan(a_disruption_state(pods=[*pods[:2], keeps_to_it], readings=reading))
    assert [move.pod.uid for move in found.moves] == ["pod-b"]


def test_a_pod_that_uses_more_memory_than_it_was_granted_goes_before_all_others() -> None:
    sizes = {"pod-a": 12_000, "pod-b": 2400, "pod-c": 9600}
    pods = [a_placed_pod(uid, mib=mib) for uid, mib in sizes.items()]
    reading = a_reading(0.9, pods={"pod-a": 0.3, "pod-b": 0.2, "pod-c": 0.32})

    kept = plan(a_disruption_state(pods=pods, readings={HOT_CARD: reading}))
    overused = replace(reading, overusers=frozenset({"pod-a"}))
    found = plan(a_disruption_state(pods=pods, readings={HOT_CARD: overused}))

    assert [move.pod.uid for move in kept.moves] == ["pod-b"]
    assert [move.pod.uid for move in found.moves] == ["pod-a"]


def test_a_small_pod_above_its_share_does_not_go_before_one_that_would_relieve_the_card() -> None:
    mib = {"big": 14_000, "small": 800, "stays": 8000}
    pods = [a_placed_pod(uid, mib=held) for uid, held in mib.items()]
    pods[2] = replace(pods[2], info=replace(pods[2].info, rebalance=Rebalance.NEVER))
    busy = {"big": 0.5, "small": 0.1, "stays": 0.4}
    state = a_disruption_state(pods=pods, readings={HOT_CARD: a_reading(1.0, pods=busy)})
    # What they asked for before they were together.
    state = replace(state, history=a_history({"big": [0.7], "small": [0.1], "stays": [0.6]}))

    assert [move.pod.uid for move in plan(state).moves] == ["big"]


def test_of_two_targets_the_cooler_one_is_taken() -> None:
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "GPU-warm"), a_node("n3", "GPU-idle")]
    readings = {"GPU-warm": a_reading(0.14), "GPU-idle": a_reading(0.01)}

    (move,) = plan(a_disruption_state(nodes=nodes, readings=readings)).moves

    assert move.target.card == "GPU-idle"


def test_on_a_tie_the_node_that_has_the_image_is_taken() -> None:
    nodes = [a_node("n0", "GPU-far"), a_node("n1", HOT_CARD, "GPU-near")]
    readings = {"GPU-far": a_reading(0.05), "GPU-near": a_reading(0.05)}

    (move,) = plan(a_disruption_state(nodes=nodes, readings=readings)).moves

    assert (move.target.card, move.target.node) == ("GPU-near", "n1")


def test_a_pod_that_nothing_is_measured_of_or_that_is_too_small_or_large_stays() -> None:
    pods = [a_placed_pod(uid) for uid in ("small", "large", "fine", "unmeasured")]
    busy = {"small": 0.05, "large": 0.81, "fine": 0.3}
    found = plan(a_disruption_state(pods=pods, readings={HOT_CARD: a_reading(0.96, pods=busy)}))

    assert [move.pod.uid for move in found.moves] == ["fine"]
    held = {held.subject: held.reason for held in found.held}
    assert held == {
        "ml/small": HoldReason.TOO_SMALL,
        "ml/large": HoldReason.TOO_LARGE,
        "ml/unmeasured": HoldReason.NOT_MEASURED_POD,
    }


def test_a_pod_that_the_api_server_does_not_know_stays() -> None:
    state = a_disruption_state()
    state = replace(state, pods={"pod-b": state.pods["pod-b"]})

    found = plan(state, replace(ACTIVE, hold_cycles=0))

    assert {(held.subject, held.reason) for held in found.held} == {
        ("pod-a", HoldReason.NOT_KNOWN),
        ("ml/pod-b", HoldReason.SINGLE_REPLICA),
    }


def test_what_was_shown_of_a_card_a_short_while_ago_is_not_shown_again() -> None:
    shown = a_past_move(minutes_ago=9, source=HOT_CARD, ending=Ending.DRY_RUN, disturbed=False)

    found = plan(a_disruption_state(past=[shown]), replace(ACTIVE, mode=Mode.DRY_RUN))

    assert found.moves == ()
    assert [(held.subject, held.reason, held.detail) for held in found.held] == [
        (HOT_CARD, HoldReason.SHOWN, "at 11:51: ml/pod-x")
    ]


def test_a_move_that_costs_more_than_it_relieves_is_not_made() -> None:
    pods = [a_placed_pod(uid, owner=("ReplicaSet", "web", uid)) for uid in ("pod-a", "pod-b")]
    pods = [
        replace(pod, info=replace(pod.info, rebalance=None, priority=1000))
        for pod in two_busy_pods()
    ]
    warm = a_reading(0.82, pods={"pod-a": 0.41, "pod-b": 0.41})

    found = plan(
        a_disruption_state(pods=pods, readings={HOT_CARD: warm, COOL_CARD: a_reading(0.1)})
    )

    assert found.moves == ()
    assert {(held.subject, held.reason) for held in found.held} == {
        ("ml/pod-a", HoldReason.NO_GAIN),
        ("ml/pod-b", HoldReason.NO_GAIN),
    }
    assert all(held.gain_points is not None and held.gain_points <= 0 for held in found.held)


def test_pods_that_peak_together_are_kept_apart() -> None:
    peaks, rests = [0.6, 0.1] * 12, [0.1, 0.6] * 12
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "GPU-c1"), a_node("n3", "GPU-c2")]
    pods = [
        *two_busy_pods(),
        a_placed_pod("with", CardUuid("GPU-c1"), node="n2", owner=None),
        a_placed_pod("against", CardUuid("GPU-c2"), node="n3", owner=None),
    ]
    state = a_disruption_state(
        nodes=nodes,
        pods=pods,
        readings={
            HOT_CARD: a_reading(0.98, pods={"pod-a": 0.49, "pod-b": 0.49}),
            "GPU-c1": a_reading(0.2, pods={"with": 0.2}),
            "GPU-c2": a_reading(0.4, pods={"against": 0.4}),
        },
    )
    loads = {"pod-a": peaks, "pod-b": peaks, "with": peaks, "against": rests}

    (move,) = plan(replace(state, history=a_history(loads))).moves

    assert move.target.card == "GPU-c2"  # although it is the busier one now


def test_a_target_may_be_warm_while_work_is_lost_and_not_where_it_would_lose_as_much() -> None:
    def moves(level: float) -> int:
        hot = a_reading(1.0, pods={"pod-a": 0.33, "pod-b": 0.33, "pod-c": 0.33})
        pods = [a_placed_pod(uid) for uid in ("pod-a", "pod-b", "pod-c")]
        readings: dict[str, Any] = {HOT_CARD: hot, COOL_CARD: a_reading(level)}
        return len(plan(a_disruption_state(pods=pods, readings=readings)).moves)

    assert [moves(level) for level in (0.3, 0.5, 0.65, 0.7)] == [1, 1, 1, 0]


@pytest.mark.parametrize("minutes_ago", [200, 15])
def test_forecasts_that_were_wrong_lately_or_are_still_open_hold_moves_back(
    minutes_ago: float,
) -> None:
    """A move was forecast to save a fifth of a card and saved nothing, as far as is known.

    It was hardly believed, and is not right for having been made all the same.
    """
    peaks = {"pod-a": [0.45] * 24, "pod-b": [0.45] * 24, "moved": [0.05] * 24}
    pods = [*two_busy_pods(), a_placed_pod("moved", CardUuid("GPU-c1"), node="n2", owner=None)]
    nodes = [a_node("n1", HOT_CARD, "GPU-c2"), a_node("n2", COOL_CARD, "GPU-c1")]
    readings = {
        "GPU-c1": a_reading(0.1, pods={"moved": 0.05}),
        "GPU-c2": a_reading(0.05),
    }
    source, landed = CardUuid("GPU-c2"), CardUuid("GPU-c1")
    wrong = a_past_move(
        minutes_ago=minutes_ago,
        source=source,
        target=landed,
        gain_points=0.0,
        saved_points=20.0,
        landed=landed,
        replacement_uid="moved",
        ending=Ending.RELIEVED,
    )

    def found(*past: Move) -> Plan:
        state = a_disruption_state(nodes=nodes, pods=pods, readings=readings, past=past)
        return plan(replace(state, history=a_history(peaks)))

    assert len(found().moves) == 1
    assert found(wrong).moves == ()
    assert HoldReason.NO_GAIN in {held.reason for held in found(wrong).held}


def test_what_a_move_made_worse_is_taken_back_however_wrong_the_forecasts_were() -> None:
    """pod-a came to a card that is hot since, from one with nothing to do."""
    peaks = {"pod-a": [0.45] * 24, "pod-b": [0.45] * 24}

    def moved(uid: str) -> list[str]:
        past = a_past_move(
            minutes_ago=200,
            source=COOL_CARD,
            source_node="n2",
            target=HOT_CARD,
            target_node="n1",
            saved_points=20.0,
            owner_uid="its-owner",
            landed=HOT_CARD,
            replacement_uid=uid,
            ending=Ending.RELIEVED,
        )
        state = a_disruption_state(pods=two_busy_pods(), past=[past])
        return [one.pod.uid for one in plan(replace(state, history=a_history(peaks))).moves]

    assert moved("pod-a") == ["pod-a"]
    assert moved("pod-b") == ["pod-b"]


def held_for_want_of_a_target(found: Plan) -> set[str]:
    return {held.detail for held in found.held if held.reason is HoldReason.NO_TARGET}


def test_cards_that_lack_history_are_counted_with_the_time_when_the_first_can_be_a_target() -> None:
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "GPU-c1", "GPU-c2", "GPU-full")]
    new = {
        "GPU-c1": replace(a_reading(0.05), history_ratio=0.1),
        "GPU-c2": replace(a_reading(0.05), history_ratio=0.3),
        "GPU-full": replace(a_reading(0.05), history_ratio=0.7, free_mib=Mib(10)),
    }

    found = plan(a_disruption_state(nodes=nodes, readings=new))

    assert found.moves == ()
    assert held_for_want_of_a_target(found) == {
        "2 cool cards with room lack history; the first can be a target in 30 min"
    }


@pytest.mark.parametrize(("history_ratio", "detail"), [(0.1, ""), (1.0, "1 of 2 nodes: taints")])
def test_a_card_on_a_node_that_refuses_the_pod_lacks_no_history(
    history_ratio: float, detail: str
) -> None:
    reading = replace(a_reading(0.05), history_ratio=history_ratio)
    nodes = [a_node("n1", HOT_CARD), a_node("n2", COOL_CARD)]
    taints = {"n2": (Taint(key="x"),)}
    pods = two_busy_pods()
    state = replace(
        a_disruption_state(nodes=nodes, pods=pods, readings={COOL_CARD: reading}),
        scheduling=scheduling_by_cards(nodes, pods, taints),
    )

    assert held_for_want_of_a_target(plan(state)) == {detail}


def test_a_target_keeps_a_margin_of_measured_memory_beyond_what_the_pod_needs() -> None:
    needed = 4000 + ACTIVE.free_margin_mib
    enough, short = (replace(a_reading(0.05), free_mib=Mib(mib)) for mib in (needed, needed - 1))

    assert len(plan(a_disruption_state(readings={COOL_CARD: enough})).moves) == 1
    assert reasons(plan(a_disruption_state(readings={COOL_CARD: short}))) == {HoldReason.NO_TARGET}


def test_the_busiest_of_two_hot_cards_is_relieved_first() -> None:
    other = CardUuid("GPU-hotter")
    pods = [
        a_placed_pod(uid, card, node=node, owner=("ReplicaSet", card, card))
        for card, node in ((HOT_CARD, "n1"), (other, "n3"))
        for uid in (f"{card}-a", f"{card}-b")
    ]
    state = a_disruption_state(
        nodes=[a_node("n1", HOT_CARD), a_node("n2", COOL_CARD), a_node("n3", other)],
        pods=pods,
        readings={
            card: a_reading(level, pods={f"{card}-a": 0.45, f"{card}-b": 0.45})
            for card, level in ((HOT_CARD, 0.9), (other, 0.95))
        },
    )

    assert subjects(state, policy=ACTIVE, now=NOON) == [other, HOT_CARD]
    assert [move.source.card for move in plan(state).moves] == [other]


def test_every_pod_that_the_best_one_beats_is_in_the_plan() -> None:
    pods = [a_placed_pod(uid) for uid in ("a", "b", "c")]
    busy = a_reading(0.95, pods={"a": 0.35, "b": 0.3, "c": 0.25})

    found = plan(a_disruption_state(pods=pods, readings={HOT_CARD: busy}))

    assert len(found.moves) == 1
    outscored = [held.subject for held in found.held if held.reason is HoldReason.OUTSCORED]
    assert sorted([*outscored, found.moves[0].pod.key]) == ["ml/a", "ml/b", "ml/c"]
