"""Why a pod waits, node by node and card by card."""

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given

from fracgpu import names
from fracgpu.cards.card import CardUuid, Health, NodeCards
from fracgpu.explain.answers import CardAnswer, Explanation, NodeAnswer, PodVerdict
from fracgpu.explain.explanation import explain, shortages
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy, describe_need
from fracgpu.state.allocation import allocations_by_card
from fracgpu.state.cluster_state import NodeConstraints
from fracgpu.state.snapshot import NodeInfo, Snapshot
from fracgpu.units import Mib
from tests.support.core import (
    a_card,
    a_need,
    a_pod_need,
    on,
    small_needs,
    small_nodes,
)
from tests.support.explaining import NOON, Cluster, a_waiting_pod, bound

ONE_GIB = a_pod_need(a_need(1024))


def only_node(explanation: Explanation) -> NodeAnswer:
    (node,) = explanation.nodes
    return node


def only_card(explanation: Explanation) -> CardAnswer:
    (card,) = only_node(explanation).cards
    return card


def test_a_pod_that_fits_is_told_which_card_it_would_get() -> None:
    state = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1)).state()

    found = explain(a_waiting_pod(ONE_GIB), state)

    assert found.verdict is PodVerdict.FITS
    assert [card.chosen for card in only_node(found).cards] == [True, False]


def test_a_full_card_says_how_much_is_free_and_who_holds_it() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    cluster.holder("small", "n", "GPU-a", 3_000).holder("large", "n", "GPU-a", 20_500)

    card = only_card(explain(a_waiting_pod(ONE_GIB), cluster.state()))

    assert card.reason == "too little free memory for 1024 MiB"
    assert card.free_mib == 500
    assert [(holder.pod, holder.mib) for holder in card.holders] == [
        ("default/large", 20_500),
        ("default/small", 3_000),
    ]


def test_a_busy_card_says_how_much_compute_is_left() -> None:
    cluster = Cluster().node("n", a_card("GPU-a")).holder("p", "n", "GPU-a", 100, cores=80)

    card = only_card(explain(a_waiting_pod(a_pod_need(a_need(100, cores=30))), cluster.state()))

    assert card.reason == "too little free compute: 20% free, 30% asked"


def test_a_card_whose_slots_are_all_taken_says_how_many_it_has_and_who_would_have_to_go() -> None:
    few = replace(a_card("GPU-a"), slots=2)
    cluster = Cluster().node("n", few)
    for name in ("p", "q"):
        cluster.holder(name, "n", "GPU-a", 100)

    explanation = explain(a_waiting_pod(a_pod_need(a_need(100))), cluster.state())

    card = only_card(explanation)
    assert card.reason == "all its slots are taken: 2 of 2"


def test_a_cordoned_node_takes_a_pod_that_tolerates_it() -> None:
    cluster = Cluster().node(
        "n", a_card("GPU-a"), site=NodeConstraints(cordoned=True), schedulable=False
    )
    tolerant = a_waiting_pod(ONE_GIB, tolerates=["node.kubernetes.io/unschedulable"])

    assert explain(tolerant, cluster.state()).verdict is PodVerdict.FITS
    assert explain(a_waiting_pod(ONE_GIB), cluster.state()).verdict is PodVerdict.STUCK


def test_a_cordoned_card_says_until_when_and_why() -> None:
    state = Cluster().node("n", a_card("GPU-a"), cordons={"GPU-a": 90}).state()

    card = only_card(explain(a_waiting_pod(ONE_GIB), state))

    assert card.reason == "cordoned by the rebalancer until 12:01:30 UTC (hot)"
    assert card.until == NOON + timedelta(seconds=90)


def test_an_unhealthy_card_says_what_it_has() -> None:
    sick = replace(a_card("GPU-a", health=Health.UNHEALTHY), health_reason="Xid 79")

    card = only_card(explain(a_waiting_pod(ONE_GIB), Cluster().node("n", sick).state()))

    assert card.reason == "unhealthy: Xid 79"


def test_a_card_of_another_model_or_size_says_so() -> None:
    state = Cluster().node("n", a_card("GPU-a", mib=24_000)).state()
    other = a_waiting_pod(a_pod_need(a_need(100), models=("*H100*",)))
    sized = a_waiting_pod(a_pod_need(a_need(40_000, share=Fraction(1, 2))))

    assert only_card(explain(other, state)).reason == "not a requested model (*H100*)"
    assert "24000 MiB shareable" in only_card(explain(sized, state)).reason


def test_cards_that_would_do_one_by_one_are_not_blamed() -> None:
    state = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1, mib=80)).state()

    node = only_node(explain(a_waiting_pod(a_pod_need(a_need(1000, cards=2))), state))

    assert node.reason.startswith("too few cards")
    assert [card.reason.partition(" for ")[0] for card in node.cards] == [
        "would fit by itself",
        "too little free memory",
    ]


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        (NodeConstraints(cordoned=True), "the node is cordoned"),
        (
            NodeConstraints(taints=(Taint(key="team", value="a"),)),
            "taint team=a:NoSchedule that the pod does not tolerate",
        ),
        (NodeConstraints(short=("Insufficient cpu",)), "Insufficient cpu"),
    ],
)
def test_a_closed_node_says_why_though_its_cards_would_do(
    constraints: NodeConstraints, text: str
) -> None:
    state = (
        Cluster()
        .node("n", a_card("GPU-a"), site=constraints, schedulable=not constraints.cordoned)
        .state()
    )

    found = explain(a_waiting_pod(ONE_GIB), state)

    assert found.verdict is PodVerdict.STUCK
    assert [objection.text for objection in only_node(found).objections] == [text]
    assert only_node(found).cards_fit


def test_a_tolerated_taint_is_no_objection() -> None:
    constraints = NodeConstraints(taints=(Taint(key="team"),))
    state = Cluster().node("n", a_card("GPU-a"), site=constraints).state()

    assert explain(a_waiting_pod(ONE_GIB, tolerates=["team"]), state).verdict is PodVerdict.FITS


@pytest.mark.parametrize(
    ("labels", "key", "remedy"),
    [
        ({}, "zone", "kubectl label node n zone=a"),
        ({"zone": "b"}, "zone", "kubectl label node n zone=a --overwrite"),
        ({"kubernetes.io/hostname": "n"}, "kubernetes.io/hostname", ""),
        ({}, "topology.kubernetes.io/zone", ""),
        ({}, names.CARD_MODEL_LABEL, ""),
        ({}, names.SHARE_LABEL, f"kubectl label node n {names.SHARE_LABEL}=a --overwrite"),
    ],
)
def test_a_node_selector_names_the_label_and_a_command_unless_it_says_what_a_node_is(
    labels: dict[str, str], key: str, remedy: str
) -> None:
    state = Cluster().node("n", a_card("GPU-a"), labels=labels).state()

    (objection,) = only_node(explain(a_waiting_pod(ONE_GIB, selector={key: "a"}), state)).objections

    assert objection.text == f"the pod's nodeSelector wants {key}=a"
    assert objection.remedy == remedy


def test_the_size_that_the_webhook_asked_of_labels_is_judged_by_the_cards() -> None:
    label = f"{names.CARD_CLASS_LABEL_PREFIX}24000"
    pod = a_waiting_pod(a_pod_need(a_need(30_000)), selector=None)
    strict = replace(
        pod,
        scheduling_constraints=replace(
            pod.scheduling_constraints,
            node=NodeRules(terms=((NodeExpression(key=label, operator="Exists"),),)),
        ),
    )
    state = Cluster().node("n", a_card("GPU-a", mib=24_000)).state()

    too_large = only_node(explain(strict, state))
    unlabelled = only_node(explain(replace(strict, info=a_waiting_pod(ONE_GIB).info), state))

    assert too_large.objections == ()
    assert [objection.text for objection in unlabelled.objections] == [
        "its labels say that it has no cards of the granted size"
    ]


def test_a_pod_granted_by_a_class_says_that_no_node_has_its_cards() -> None:
    note = {names.GRANTED: '\n{"containers":{},"classMib":24000,"cardClass":"a30"}'}
    wanted = NodeExpression(key=names.CARD_CLASS_LABEL, operator="In", values=("a30",))
    pod = a_waiting_pod(ONE_GIB, annotations=note)
    rules = NodeRules(terms=((wanted,),))
    pod = replace(pod, scheduling_constraints=replace(pod.scheduling_constraints, node=rules))
    other = {names.CARD_CLASS_LABEL: "t4"}
    without = explain(pod, Cluster().node("n", a_card("GPU-a"), labels=other).state())
    mine = {names.CARD_CLASS_LABEL: "a30"}
    there = explain(pod, Cluster().node("n", a_card("GPU-a"), labels=mine).state())

    assert any(note.startswith("no node has a30 cards now") for note in without.notes)
    assert [each.text for each in only_node(without).objections] == [
        "its labels say that it has no cards of the granted size"
    ]
    assert not any("a30" in note for note in there.notes)
    assert only_node(there).objections == ()


def test_a_node_that_does_not_limit_containers_says_why() -> None:
    pod = a_waiting_pod(ONE_GIB, annotations={names.ISOLATION: "kernel"})
    label = NodeExpression(key="fracgpu.io/isolation-kernel", operator="In", values=("true",))
    strict = replace(
        pod,
        scheduling_constraints=replace(
            pod.scheduling_constraints, node=NodeRules(terms=((label,),))
        ),
    )
    cluster = Cluster().node("n", a_card("GPU-a"))
    cluster.nodes[0] = replace(cluster.nodes[0], isolation={"kernel": "GPU-a: driver: MIG is on"})
    limits = Cluster().node("n", a_card("GPU-a"), labels={"fracgpu.io/isolation-kernel": "true"})

    (objection,) = only_node(explain(strict, cluster.state())).objections
    best = explain(a_waiting_pod(ONE_GIB, annotations={names.ISOLATION: "best"}), cluster.state())

    assert objection.text == (
        "the pod wants fracgpu.io/isolation: kernel, and the node does not limit containers so: "
        "GPU-a: driver: MIG is on"
    )
    assert only_node(explain(strict, limits.state())).objections == ()
    assert only_node(best).objections == ()


def test_a_pod_that_the_webhook_never_saw_is_told_to_come_again() -> None:
    pod = a_waiting_pod(None)
    pod_info = replace(pod.info, need_problem="limits of container 'c' is 'no gpu-mem'")

    found = explain(replace(pod, info=pod_info), Cluster().node("n", a_card("GPU-a")).state())

    assert found.verdict is PodVerdict.STUCK
    assert "no gpu-mem" in found.blockers[0]


def test_a_limit_without_a_grant_is_a_pod_that_slipped_past() -> None:
    pod = a_waiting_pod(ONE_GIB)
    pod_info = replace(pod.info, annotations={})

    found = explain(replace(pod, info=pod_info), Cluster().node("n", a_card("GPU-a")).state())

    assert found.verdict is PodVerdict.STUCK
    assert names.GRANTED in found.blockers[0]
    assert only_node(found).fits


def test_a_pod_that_runs_without_a_grant_is_not_said_to_be_held_up_by_the_agent() -> None:
    """It was created before FracGPU was there: default-scheduler bound it, kubelet started it."""
    pod = bound(a_waiting_pod(ONE_GIB), "n", None)
    pod = replace(pod, info=replace(pod.info, annotations={names.FRACTION: "0.5"}))

    found = explain(pod, Cluster().node("n", a_card("GPU-a")).state())

    assert (found.verdict, found.on_node) == (PodVerdict.STUCK, "n")
    assert found.blockers == (
        "the webhook has not admitted it (no fracgpu.io/granted); create it again while the "
        "webhook is up",
    )


def test_another_scheduler_and_a_gate_stand_in_the_way_of_a_pod_with_room() -> None:
    pod = replace(a_waiting_pod(ONE_GIB), gates=("team/quota",))
    pod_info = replace(pod.info, scheduler_name="default-scheduler")

    found = explain(replace(pod, info=pod_info), Cluster().node("n", a_card("GPU-a")).state())

    assert found.verdict is PodVerdict.STUCK
    assert "'default-scheduler'" in found.blockers[0]
    assert "team/quota" in found.blockers[1]


def test_a_pod_that_is_going_is_not_said_to_fit() -> None:
    pod = a_waiting_pod(ONE_GIB)
    record = replace(pod.info.record, terminating=True)
    pod = replace(pod, info=replace(pod.info, record=record))

    found = explain(pod, Cluster().node("n", a_card("GPU-a")).state())

    assert (found.verdict, found.blockers) == (PodVerdict.STUCK, ("it is being deleted",))


def test_a_running_pod_says_which_cards_and_since_when() -> None:
    state = Cluster().node("n", a_card("GPU-a", index=3)).state()

    found = explain(bound(a_waiting_pod(ONE_GIB), "n", on("GPU-a", 1024)), state)

    assert (found.verdict, found.on_node, found.since) == (PodVerdict.RUNS, "n", NOON)
    assert [(card.uuid, card.index, card.mib) for card in found.held] == [("GPU-a", 3, 1024)]


def test_a_card_that_left_its_node_is_still_named() -> None:
    state = Cluster().node("n").state()

    found = explain(bound(a_waiting_pod(ONE_GIB), "n", on("GPU-a", 1024)), state)

    assert [(card.uuid, card.index) for card in found.held] == [("GPU-a", -1)]


def test_a_pod_bound_without_cards_is_stuck_for_good() -> None:
    state = Cluster().node("n", a_card("GPU-a")).state()

    found = explain(bound(a_waiting_pod(ONE_GIB), "n", None), state)

    assert found.verdict is PodVerdict.STUCK
    assert names.ASSIGNMENT in found.blockers[0]


def test_an_ended_pod_neither_fits_nor_runs() -> None:
    pod = bound(a_waiting_pod(ONE_GIB), "n", on("GPU-a", 1024))
    ended = replace(pod.info, record=replace(pod.info.record, live=False))

    found = explain(replace(pod, info=ended), Cluster().state())

    assert found.verdict is PodVerdict.ENDED


def test_a_pod_that_asks_for_nothing_is_not_ours() -> None:
    assert explain(a_waiting_pod(None), Cluster().state()).verdict is PodVerdict.ASKS_NOTHING


def test_what_was_not_judged_is_said() -> None:
    pod = a_waiting_pod(ONE_GIB)
    unjudged = replace(pod.scheduling_constraints, unjudged=("resourceClaims",))
    pod = replace(pod, scheduling_constraints=unjudged)
    state = Cluster().node("n", a_card("GPU-a")).state()

    others = explain(replace(pod, info=replace(pod.info, has_other_claims=True)), state)

    assert others.notes == ("its resourceClaims is not evaluated here",)
    assert explain(pod, state).notes == ()  # of our claim all that matters is


def test_a_need_is_described_with_its_numbers() -> None:
    need = a_pod_need(a_need(8192, cards=2, cores=30), a_need(512, name="eval"), models=("*A30*",))

    assert describe_need(need) == (
        "main: 8 GiB on each of 2 cards, 30% of the compute; eval: 512 MiB on 1 card; models *A30*"
    )


@given(small_nodes(), small_needs())
def test_an_explanation_never_disagrees_with_the_placement(
    node_info: NodeInfo, need: PodNeed
) -> None:
    pods = {}
    for uuid, card_info in node_info.cards.items():
        for uid in card_info.pods:
            cluster = Cluster()
            cluster.holder(
                uid,
                "n",
                uuid,
                card_info.held_mib,
                cores=card_info.held_cores,
                borrow_mib=card_info.held_borrow_mib,
            )
            (pods[uid],) = cluster.allocations
    state = replace(Cluster().state(), snapshot=Snapshot(nodes={"n": node_info}, pods=pods))

    found = explain(a_waiting_pod(need), state)

    real = place(node_info, need, strategy=Strategy.PACK)
    node = only_node(found)
    assert node.fits == isinstance(real, Placement)
    if isinstance(real, Placement):
        taken = {CardUuid(part.card) for parts in real.assignment.values() for part in parts}
        assert {card.uuid for card in node.cards if card.chosen} == taken
        assert allocations_by_card(real.assignment, ()).keys() == taken
    else:
        assert node.reason == real.text
        blamed = {card.uuid for card in node.cards if card.reason.startswith("too ")}
        assert blamed <= real.refusals.keys()


def test_what_a_node_lacks_besides_cards_is_told_in_numbers() -> None:
    node = NodeCards(node="n", host=HostResources(cpu_milli=8000, memory_mib=1000, pods=3))
    asked = HostResources(cpu_milli=3000, memory_mib=10, pods=1)

    roomy = shortages(
        node, asked=asked, taken=HostResources(cpu_milli=5000, memory_mib=990, pods=2)
    )
    full = shortages(node, asked=asked, taken=HostResources(cpu_milli=5001, memory_mib=991, pods=3))

    assert roomy == ()
    assert full == (
        "too little CPU: 2999m free, 3000m asked",
        "too little host memory: 9 MiB free, 10 MiB asked",
        "the node has its maximum of 3 pods",
    )


def test_a_node_that_does_not_say_what_it_has_is_not_blamed() -> None:
    asked = HostResources(cpu_milli=3000, memory_mib=10, pods=1)

    assert shortages(NodeCards(node="n"), asked=asked, taken=asked) == ()


def test_memory_that_nobody_known_uses_is_named() -> None:
    foreign = {CardUuid("GPU-a"): Mib(23_900)}
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    cluster.nodes[0] = replace(cluster.nodes[0], foreign=foreign)

    card = only_card(explain(a_waiting_pod(ONE_GIB), cluster.state()))

    assert card.reason.endswith("for 1024 MiB (23900 MiB used by other processes)")
