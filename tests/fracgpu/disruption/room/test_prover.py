"""What a plan has to prove, one part at a time."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods import make_room
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.policy import MakeRoom
from fracgpu.disruption.room.prover import StateProver, room_context
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.k8s.scheduling.objects import SchedulingNode
from fracgpu.k8s.scheduling.requests import PODS
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MovePhase
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.making_room import a_cluster, a_small_pod, a_waiting_pod
from tests.support.rebalancing import ACTIVE, CARD_MIB, a_past_move, a_reading, avoiding

HELD = {"n1": {"a0": 4000}, "n2": {"b0": 8000, "b1": 2000}}


def prover(state: DisruptionState, waiting: PlacedPod | None = None, **policy: Any) -> StateProver:
    context = room_context(state, policy=replace(ACTIVE, **policy), now=NOON)
    return StateProver(context, waiting or a_waiting_pod())


def target_of(state: DisruptionState, card: str = "a0", **policy: Any) -> str | None:
    asked = prover(state, **policy)
    (pod,) = asked.movable(CardUuid(card))
    found = asked.target(pod, (), frozenset({CardUuid(card)}))
    return found[1] if found else None


def test_the_target_is_the_one_that_the_clusters_strategy_prefers() -> None:
    state = a_cluster(HELD)
    assert target_of(state) == "b0"
    assert target_of(replace(state, strategy=Strategy.SPREAD)) == "b1"


def test_an_avoided_card_is_the_target_only_where_there_is_no_other() -> None:
    state = a_cluster(HELD)
    assert target_of(avoiding(state, "b0")) == "b1"
    assert target_of(avoiding(state, "b0", "b1")) == "b0"


def test_the_pods_own_strategy_comes_first() -> None:
    spread = PodNeed(
        containers=(ContainerNeed(name="main", mib=Mib(4000)),), strategy=Strategy.SPREAD
    )
    pod = a_small_pod("p", "a0", node="n1", need=spread)
    state = a_cluster({"n1": {"a0": 0}, "n2": HELD["n2"]}, pod)
    assert target_of(state) == "b1"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"readings": {"b0": a_reading(0.55)}}, id="it would be busier than allowed"),
        pytest.param({"readings": {"b0": None}}, id="it is not measured"),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), repeating=True)}},
            id="what is measured of it repeats itself",
        ),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), history_ratio=0.7)}},
            id="it has not been measured for long",
        ),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), remembered_ratio=0.75)}},
            id="it was often busy",
        ),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), free_mib=Mib(4100))}},
            id="it has less free memory than the ledger says",
        ),
    ],
)
def test_a_card_that_would_not_stay_cool_is_no_target(change: dict[str, Any]) -> None:
    assert target_of(a_cluster(HELD, **change)) == "b1"


def test_a_pod_that_is_not_measured_counts_with_all_that_its_card_does() -> None:
    busy = {"a0": a_reading(0.55)}
    assert target_of(a_cluster(HELD, readings=busy)) is None
    measured = {"a0": a_reading(0.55, pods={"p-a0": 0.1})}
    assert target_of(a_cluster(HELD, readings=measured)) == "b0"


def test_a_card_that_the_owner_left_or_that_has_just_been_a_target_is_none() -> None:
    left = a_past_move(minutes_ago=30, source=CardUuid("b0"), owner_uid="owner-p-a0")
    joined = a_past_move(minutes_ago=5, target=CardUuid("b1"))
    roomy: dict[str, Any] = {
        "owner_cooldown_s": 60,
        "max_per_owner_per_hour": 9,
        "max_per_namespace_per_hour": 9,
    }
    assert target_of(a_cluster(HELD, past=[left]), **roomy) == "b1"
    assert target_of(a_cluster(HELD, past=[left, joined]), **roomy) is None


def test_a_move_that_was_only_shown_keeps_no_card_from_one_that_is_made() -> None:
    made = a_past_move(minutes_ago=30, source=CardUuid("b0"), owner_uid="owner-p-a0")
    shown = replace(made, phase=MovePhase.RECOMMENDED)
    assert target_of(a_cluster(HELD, past=[shown])) == "b0"


def test_a_card_of_another_model_is_no_target() -> None:
    state = a_cluster(HELD)
    info = state.snapshot.nodes["n2"]
    cards = {
        uuid: structs.replace(it, card=replace(it.card, model="L4"))
        for uuid, it in info.cards.items()
    }
    nodes = {**state.snapshot.nodes, "n2": replace(info, cards=cards)}
    assert target_of(replace(state, snapshot=replace(state.snapshot, nodes=nodes))) is None


def test_a_node_that_the_pod_may_not_run_on_is_no_target() -> None:
    elsewhere = NodeExpression(key="zone", operator="In", values=("far",))
    nowhere = SchedulingConstraints(node=NodeRules(selector=(elsewhere,)))
    pod = a_small_pod("p", "a0", node="n1", rules=nowhere)
    assert target_of(a_cluster({"n1": {"a0": 0}, "n2": HELD["n2"]}, pod)) is None


def test_the_waiting_pod_fits_only_on_the_cards_that_are_meant_for_it() -> None:
    state = a_cluster({"n1": {"a0": 4000, "a1": 0}})
    asked = prover(state)
    (pod,) = asked.movable(CardUuid("a0"))
    assert asked.fits("n1", [CardUuid("a1")], ())
    assert not asked.fits("n1", [CardUuid("a0")], ())
    assert asked.fits("n1", [CardUuid("a0")], (pod,))


def test_the_waiting_pod_needs_cpu_on_the_node_once_the_moved_pods_have_left() -> None:
    def fits(asked_milli: int, *, leaves: bool) -> bool:
        asks = SchedulingConstraints(requests=(("cpu", asked_milli),))
        has = SchedulingConstraints(requests=(("cpu", 3000),))
        pod = a_small_pod("p", "a0", node="n1", rules=has)
        waiting = a_waiting_pod(rules=asks, mib=4000)
        state = a_cluster({"n1": {"a0": 0}}, pod, waiting)
        node = SchedulingNode(name="n1", allocatable={"cpu": 8000, PODS: 10})
        state = replace(state, scheduling=SchedulingCluster([node], [pod.scheduled]))
        asked = prover(state, waiting)
        gone = tuple(asked.movable(CardUuid("a0"))) if leaves else ()
        return asked.fits("n1", [CardUuid("a0")], gone)

    assert fits(5000, leaves=False)
    assert not fits(6000, leaves=False)
    assert fits(8000, leaves=True)
    assert not fits(8001, leaves=True)


def test_a_pod_that_the_budgets_hold_back_has_no_target() -> None:
    state = a_cluster(HELD)
    context = room_context(state, policy=ACTIVE, now=NOON)
    asked = StateProver(context, a_waiting_pod(), allows=lambda pod, _: pod.uid != "p-a0")
    (moved,) = asked.movable(CardUuid("a0"))
    assert asked.target(moved, (), frozenset()) is None


def test_a_pod_that_is_on_its_way_is_not_moved_again() -> None:
    on_its_way = a_past_move(minutes_ago=1, under_way=True, pod_uid="p-a0", owner_uid="other")
    assert prover(a_cluster(HELD, past=[on_its_way])).movable(CardUuid("a0")) == []


def test_the_context_is_built_once_for_one_state() -> None:
    state = a_cluster(HELD)
    first = room_context(state, policy=ACTIVE, now=NOON)
    assert room_context(state, policy=ACTIVE, now=NOON) is first
    assert room_context(replace(state), policy=ACTIVE, now=NOON) is not first


def test_fifty_waiting_pods_cost_few_looks_at_a_thousand_nodes() -> None:
    """Few nodes are tried for each, and each pod that might be moved is asked about once."""
    nodes = {f"n{row}": {f"n{row}-{column}": 0 for column in range(8)} for row in range(1000)}
    pods = [
        a_small_pod(f"{card}-{number}", card, node=node, mib=6600)
        for node, cards in nodes.items()
        for card in cards
        for number in range(3)
    ]
    waiting = [
        a_waiting_pod(f"w{number}", cards=(1, 2, 4, 8)[number % 4], mib=CARD_MIB)
        for number in range(50)
    ]
    state = a_cluster(nodes, pods=[*pods, *waiting])
    policy = replace(ACTIVE, make_room=MakeRoom.ACTIVE)
    held: list[HeldBack] = []

    for pod in waiting:
        assert make_room.plan_for(state, pod.uid, held, policy=policy, now=NOON) == ()

    assert [one.reason for one in held] == [HoldReason.NO_ROOM] * 50
    context = room_context(state, policy=policy, now=NOON)
    assert 50 <= context.asked <= 2000  # 36 for each; every pod of every card would be 24,000
