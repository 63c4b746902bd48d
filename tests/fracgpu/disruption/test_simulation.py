"""Where a replacement could run: the scheduler's rules, asked before a pod is moved."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.simulation import PlacementSimulation, Target
from fracgpu.k8s.resources import pod_host, pod_requests
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import Rebalance, Strategy
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.cluster_state import PlacedPod, scheduling_by_cards
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import allocation_of
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    CARD_MIB,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_node,
    a_past_move,
    a_placed_pod,
    avoiding,
)
from tests.support.scheduling import HOST, REQUIRED, Json, pod_json, pod_term, read_pod, spread

WEB = {"app": "web", "pod-template-hash": "h1"}


def constraints(**facts: Any) -> SchedulingConstraints:
    return read_pod(pod_json("p", namespace="ml", **facts)).constraints


def replica(uid: str = "pod-a", **facts: Any) -> PlacedPod:
    """Return a pod of a Deployment, on the hot card of n1."""
    return a_placed_pod(uid, **{"labels": WEB, **facts})


def repelled(term: Json) -> SchedulingConstraints:
    return constraints(affinity={"podAntiAffinity": {REQUIRED: [term]}})


def hosts(*names: str) -> list[NodeCards]:
    """Return nodes of one card each; the first has the hot card."""
    cards = (HOT_CARD, *(f"GPU-{name}" for name in names[1:]))
    return [
        a_node(name, card, labels={HOST: name}) for name, card in zip(names, cards, strict=True)
    ]


def evicted(pod: PlacedPod) -> PlacedPod:
    return replace(pod, info=replace(pod.info, rebalance=Rebalance.EVICT))


def nodes_for(pod: PlacedPod, nodes: list[NodeCards], *others: PlacedPod) -> list[str]:
    state = a_disruption_state(nodes=nodes, pods=[pod, *others])
    return [target.node for target in PlacementSimulation(state).targets(pod)]


def test_no_card_is_a_target_on_a_node_that_an_autoscaler_removes() -> None:
    stays, goes = a_node("n2", COOL_CARD), replace(a_node("n3", "GPU-c"), leaving=True)
    nodes = [a_node("n1", HOT_CARD), stays, goes]
    pod = replica()
    simulation = PlacementSimulation(a_disruption_state(nodes=nodes, pods=[pod]))

    assert list(simulation.targets(pod)) == [Target("n2", COOL_CARD)]
    assert simulation.nodes_for(pod, ["n2", "n3"]).tolist() == [True, False]


def test_every_card_with_room_is_a_target_but_the_pods_own() -> None:
    nodes = [a_node("n1", HOT_CARD, "GPU-b"), a_node("n2", COOL_CARD, "GPU-full")]
    full = a_placed_pod("full", CardUuid("GPU-full"), node="n2", mib=CARD_MIB)
    pod = replica()
    state = a_disruption_state(nodes=nodes, pods=[pod, full])

    targets = PlacementSimulation(state).targets(pod)

    assert list(targets) == [Target("n1", CardUuid("GPU-b")), Target("n2", COOL_CARD)]
    assert targets[0] == Target("n1", CardUuid("GPU-b"))
    excluded = frozenset({COOL_CARD, CardUuid("GPU-unknown")})
    assert list(PlacementSimulation(state).targets(pod, exclude=excluded)) == [
        Target("n1", CardUuid("GPU-b"))
    ]


def test_a_surge_is_kept_off_by_the_anti_affinity_against_itself_and_an_eviction_is_not() -> None:
    nodes = [a_node("n1", HOT_CARD, "GPU-b", labels={HOST: "n1"}), *hosts("x", "n2")[1:]]
    pod = replica(rules=repelled(pod_term(HOST)))

    assert nodes_for(pod, nodes) == ["n2"]
    assert nodes_for(evicted(pod), nodes) == ["n1", "n2"]
    for moved, allowed in ((pod, [False, True]), (evicted(pod), [True, True])):
        simulation = PlacementSimulation(a_disruption_state(nodes=nodes, pods=[moved]))
        assert simulation.nodes_for(moved, ["n1", "n2"]).tolist() == allowed


def test_a_released_pod_is_not_of_its_version_any_more() -> None:
    rules = constraints(
        labels=WEB,
        topologySpreadConstraints=[spread(HOST, matchLabelKeys=["pod-template-hash"])],
    )
    nodes = hosts("n1", "n2")
    pod = replica(rules=rules)
    sibling = replica("pod-b", card=CardUuid("GPU-n2"), node="n2", rules=rules)
    here = [a_node("n1", HOT_CARD, "GPU-b", labels={HOST: "n1"}), nodes[1]]

    # One on each node; with the old pod released, n1 has none, and n2 would have two.
    assert nodes_for(pod, here, sibling) == ["n1"]


def test_a_surge_needs_room_beside_the_old_pod() -> None:
    rules = constraints(requests={"cpu": "6"})
    nodes = [a_node("n1", HOT_CARD, "GPU-b")]
    pod = replica(rules=rules)
    state = a_disruption_state(nodes=nodes, pods=[pod])
    (node,) = state.scheduling.nodes
    room = replace(node, allocatable={"cpu": 8000, "pods": 10})
    small = replace(state, scheduling=type(state.scheduling)([room], [pod.scheduled]))

    assert not PlacementSimulation(small).targets(pod)
    assert len(PlacementSimulation(small).targets(evicted(pod))) == 1
    why = PlacementSimulation(small).why_none(pod)
    assert why == "1 of 1 nodes: CPU, memory or another resource"


def test_a_replacement_on_its_way_counts_with_its_constraints() -> None:
    rules = repelled(pod_term(HOST))
    pod, sibling = replica("pod-a", rules=rules), replica("pod-b", rules=rules)
    nodes = hosts("n1", "n2", "n3")
    coming = a_past_move(
        under_way=True, pod_uid="pod-b", owner_uid="owner-1", target_node="n2", target="GPU-n2"
    )
    state = a_disruption_state(nodes=nodes, pods=[pod, sibling], past=[coming])

    targets = PlacementSimulation(state).targets(pod)

    assert [target.node for target in targets] == ["n3"]


@pytest.mark.parametrize(
    ("strategy", "card"), [(Strategy.PACK, "GPU-half"), (Strategy.SPREAD, "GPU-empty")]
)
def test_the_choice_of_the_scheduler_is_known(strategy: Strategy, card: str) -> None:
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "GPU-half", "GPU-empty")]
    pods = [replica(), a_placed_pod("half", CardUuid("GPU-half"), node="n2", mib=12_000)]
    state = replace(a_disruption_state(nodes=nodes, pods=pods), strategy=strategy)
    simulation = PlacementSimulation(state)
    pod = pods[0]

    found = simulation.scheduler_choice(pod, simulation.targets(pod))

    assert found == Target("n2", CardUuid(card))
    assert simulation.scheduler_choice(pod, simulation.targets(pod, exclude=every(state))) is None
    others = {"GPU-half", "GPU-empty"} - {card}
    avoided = PlacementSimulation(avoiding(state, card))
    assert avoided.scheduler_choice(pod, avoided.targets(pod)) == Target(
        "n2", CardUuid(others.pop())
    )


@pytest.mark.parametrize("strategy", Strategy)
def test_avoided_cards_come_last_and_of_them_the_coolest_first(strategy: Strategy) -> None:
    nodes = [a_node("n1", HOT_CARD)]
    for name, heat in (("n2", 0.6), ("n3", 0.3), ("n4", 0.5), ("n5", 0.9)):
        card = CardUuid(f"GPU-{name}")
        entry = Cordon(
            card=card,
            until=NOON + timedelta(minutes=5),
            reason="warm",
            effect=CordonEffect.PREFER_NO_SCHEDULE,
        )
        cordons = () if name == "n5" else (entry,)
        nodes.append(
            replace(a_node(name, card), heat={card: heat}, load_time=NOON, cordons=cordons)
        )
    unreadable = a_placed_pod("other", CardUuid("GPU-n4"), node="n4", mib=12_000, need=None)
    pods = [replica(), unreadable]
    state = replace(a_disruption_state(nodes=nodes, pods=pods), strategy=strategy)
    state.index.observe({pod.uid: a_bound_pod(pod) for pod in pods})
    state.learn()
    simulation = PlacementSimulation(state)
    targets = simulation.targets(pods[0])

    preference = simulation.preference(pods[0], targets.rows, targets.columns)

    order = [targets[at].node for at in np.argsort(-preference).tolist()]
    assert order == ["n5", "n3", "n4", "n2"]


@settings(max_examples=20)
@given(st.data())
def test_of_some_cards_it_knows_the_one_that_least_waste_would_choose(data: st.DataObject) -> None:
    """Asked as the extender asks it, which is kept off the other cards."""
    nodes = [a_node("n1", HOT_CARD), a_node("n2", "a", "b", "c"), a_node("n3", "d", "e", model="B")]
    sizes = st.sampled_from([2000, 4000, 6000, 8000, 12_000])
    pods = [replica()]
    for node in nodes[1:]:
        for card in node.cards:
            found = data.draw(
                st.lists(sizes, max_size=3).filter(lambda here: sum(here) <= CARD_MIB)
            )
            pods += [
                a_placed_pod(f"{card.uuid}-{at}", card.uuid, node=node.node, mib=mib)
                for at, mib in enumerate(found)
            ]
    among = data.draw(st.sets(st.sampled_from("abcde"), min_size=1))
    closed = {CardUuid(card): "n2" if card in "abc" else "n3" for card in set("abcde") - among}
    state = a_disruption_state(nodes=nodes, pods=pods)
    state.index.observe({pod.uid: a_bound_pod(pod) for pod in pods})
    state.learn()
    simulation = PlacementSimulation(state)
    targets = simulation.targets(pods[0], exclude=frozenset(closed))

    chosen = simulation.scheduler_choice(pods[0], targets)

    if chosen is None:
        assert not targets
        return
    ledger, bound = Ledger(), BoundPodIndex()
    for node in nodes:
        ledger.set_node(node)
    for pod in pods:
        ledger.set_pod(pod.info.record)
        bound.put(a_bound_pod(pod))
    matrix = NodeMatrix(ledger)
    order = LeastWasteOrder(matrix, bound, now=lambda: NOON)
    order.learn_now()
    need, host = pods[0].info.need, pod_host(pod_requests(pods[0].info.record.containers))
    assert need is not None
    offered = sorted({target.node for target in targets})
    scores = order.score(need, host, matrix.rows_of(offered), closed=closed)
    assert scores is not None
    assert scores[offered.index(chosen.node)] == scores.max()
    assert order.prefer(need, host, chosen.node, closed=closed) == frozenset({chosen.card})


def a_bound_pod(pod: PlacedPod) -> BoundPod:
    record = pod.info.record
    host = pod_host(pod_requests(record.containers))
    allocation = allocation_of(record)
    return BoundPod(namespace=record.namespace, name=record.name, host=host, allocation=allocation)


def every(state: DisruptionState) -> frozenset[CardUuid]:
    return frozenset(state.cards())


def test_two_thousand_pods_on_a_thousand_nodes_are_answered_by_a_handful_of_evaluations() -> None:
    """How long that takes depends on the machine."""
    names = [f"n{number:04}" for number in range(1000)]
    nodes = [a_node(name, *(f"GPU-{name}-{index}" for index in range(8))) for name in names]
    pods = [
        replica(
            f"pod-{number}",
            card=CardUuid(f"GPU-{names[number % 1000]}-{number // 1000 % 8}"),
            node=names[number % 1000],
            mib=1000,
            owner=("ReplicaSet", "web", f"owner-{number % 2000}"),
        )
        for number in range(20_000)
    ]
    state = a_disruption_state(nodes=nodes, pods=pods)
    scheduling = scheduling_by_cards(nodes, pods)
    state = replace(state, scheduling=scheduling)
    hot = frozenset(card for card in state.cards())

    for number in range(100):  # as many hot cards, each with twenty pods
        simulation = PlacementSimulation(state)
        for pod in pods[20 * number : 20 * number + 20]:
            assert not simulation.targets(pod, exclude=hot)
            assert simulation.targets(pod)

    # All pods ask for the same, and none has terms of its own.
    assert len(state.scheduling.kept) == 1
    assert state.index.evaluated == 3  # the need, and both sets of excluded cards
