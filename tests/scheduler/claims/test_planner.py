"""Which nodes a shortlist names, beyond what the extender says of cards."""

import json
from datetime import timedelta
from typing import Any

import pytest

from fracgpu.device_claims.taints import kept_for, reserved_by
from fracgpu.state.move_object import Move
from fracgpu.state.pod_info import PodInfo
from scheduler.claims.cache import UnboundPod
from scheduler.claims.planner import ClaimPlanner, Plan, why_no_claim
from tests.fakes.clock import NOON
from tests.scheduler.claims.harness import ClaimsHarness, a_pod, an_api, owned
from tests.support.core import a_need, a_pod_need, a_record
from tests.support.gpu import Json, some_cards
from tests.support.moves import a_beneficiary, move_of
from tests.support.work import counted_lines


def plan_of(harness: ClaimsHarness, pod: Json, *, without: tuple[str, ...] = ()) -> Plan:
    harness.api.put_pod(pod)
    unbound: UnboundPod = harness.cache.pods[pod["metadata"]["uid"]]
    assert why_no_claim(unbound.info) == ""
    return ClaimPlanner(harness.core, harness.cache.nodes).plan(unbound, without=without)


def test_for_a_pod_that_no_claim_can_hold_none_is_made() -> None:
    many = a_pod_need(*(a_need(1, name=f"c{number}") for number in range(33)))

    why = why_no_claim(PodInfo(record=a_record("p"), need=many))

    assert why.startswith("the pod is '33 containers with a share'; want at most 32")


def test_the_best_of_the_fitting_nodes_are_listed_and_no_more_than_four() -> None:
    harness = ClaimsHarness(an_api(nodes=6))
    harness.see_node("n1", some_cards("n1", mib=80))

    plan = plan_of(harness, a_pod("p"))

    assert plan.nodes == ("n2", "n3", "n4", "n5")
    assert plan.cards == {"train": ["GPU-n2-0", "GPU-n3-0", "GPU-n4-0", "GPU-n5-0"]}
    assert [part.card for part in plan.choice["train"]] == ["GPU-n2-0"]


def test_several_cards_of_a_container_are_listed_node_by_node() -> None:
    harness = ClaimsHarness(an_api(nodes=2, cards=3))

    plan = plan_of(harness, a_pod("p", cards=2))

    assert plan.cards == {"train": ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]}


def test_the_tolerations_of_a_pod_are_searched_once_for_all_nodes_with_the_same_taints() -> None:
    """The webhook lets 384 KiB of them pass, and the API server takes more afterwards."""
    harness = ClaimsHarness(an_api(nodes=40))
    taint = {"key": "example.com/last", "effect": "NoSchedule"}
    for name, cards in harness.api.cards.items():
        harness.see_node(name, cards, taints=[taint])
    keys = [*(f"example.com/{at}" for at in range(1_000)), taint["key"]]

    tolerations = [{"key": key, "operator": "Exists"} for key in keys]
    with counted_lines() as lines:
        assert len(plan_of(harness, a_pod("p", tolerations=tolerations)).nodes) == 4

    assert lines.count < 30_000


def test_nodes_that_are_to_be_left_out_are_not_listed() -> None:
    harness = ClaimsHarness(an_api(nodes=3))

    assert plan_of(harness, a_pod("p"), without=("n1", "n3")).nodes == ("n2",)


@pytest.mark.parametrize(
    ("node", "pod"),
    [
        ({"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}, {}),
        ({"unschedulable": True}, {}),
        ({}, {"nodeSelector": {"zone": "b"}}),
        ({}, {"cpu": "65"}),
        ({}, {"annotations": {"fracgpu.io/isolation": "kernel"}}),
    ],
)
def test_nodes_where_kube_scheduler_would_refuse_the_pod_are_not_listed(
    node: dict[str, Any], pod: dict[str, Any]
) -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_node("n1", harness.api.cards["n1"], **node)

    plan = plan_of(harness, a_pod("p", **pod))

    assert plan.cards is None
    assert plan.why in (
        "no node that the pod selects and tolerates shares cards",
        "no node with a fitting card has the CPU and memory that the pod requests",
    )


def test_a_pod_goes_where_it_selects_and_tolerates() -> None:
    harness = ClaimsHarness(an_api(nodes=2))
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    labels = {"zone": "b", "fracgpu.io/isolation-kernel": "true"}
    harness.see_node("n2", harness.api.cards["n2"], labels=labels, taints=[taint])

    plan = plan_of(
        harness,
        a_pod(
            "p",
            nodeSelector={"zone": "b"},
            tolerations=[{"key": "team", "operator": "Exists"}],
            annotations={"fracgpu.io/isolation": "kernel"},
        ),
    )

    assert plan.nodes == ("n2",)


def test_cpu_that_another_pod_is_about_to_take_is_not_free() -> None:
    harness = ClaimsHarness(an_api(nodes=2))
    first = a_pod("first", 1_000, cpu="60")
    plan = plan_of(harness, first)
    pod = harness.cache.pods["uid-first"]
    harness.cache.assume(pod, plan.nodes[0], plan.choice)

    assert plan.nodes == ("n1", "n2")
    assert plan_of(harness, a_pod("second", 1_000, cpu="60")).nodes == ("n2",)


LATER = NOON + timedelta(hours=1)


def move_to(node: str, **facts: Any) -> Move:
    target = (node, f"GPU-{node}-0")
    facts = {"owner_uid": "rs", "source": ("n9", "GPU-n9-0"), "target": target} | facts
    return move_of(mib=6000, reserved_until=LATER, **facts)


def test_the_replacement_gets_the_reserved_card_and_others_get_any_other() -> None:
    harness = ClaimsHarness(an_api(nodes=3))
    harness.see_move(move_to("n2"))

    plan = plan_of(harness, owned(a_pod("p")))
    other = plan_of(harness, a_pod("q"))

    assert plan.cards == {"train": ["GPU-n2-0"]}
    assert (plan.tolerated, plan.move) == ((reserved_by("move-1"),), "move-1")
    assert other.nodes == ("n1", "n3")
    assert (other.tolerated, other.move) == ((), "")


def test_a_card_that_is_kept_for_a_waiting_pod_is_listed_for_that_pod_alone() -> None:
    harness = ClaimsHarness(an_api(nodes=2))
    room = a_beneficiary("GPU-n1-0", uid="uid-p", held_until=LATER)
    harness.see_move(move_to("n9", source=("n1", "GPU-n1-0"), owner_uid="other", beneficiary=room))

    plan = plan_of(harness, a_pod("p"))

    assert plan.cards == {"train": ["GPU-n1-0"]}
    assert (plan.tolerated, plan.move) == ((kept_for("uid-p"),), "")
    assert plan_of(harness, a_pod("q")).nodes == ("n2",)


def test_a_reserved_card_that_cannot_take_the_pod_any_more_is_given_up() -> None:
    harness = ClaimsHarness(an_api(nodes=2))
    harness.see_move(move_to("n2"))
    harness.see_node("n2", harness.api.cards["n2"], unschedulable=True)

    plan = plan_of(harness, owned(a_pod("p")))

    assert (plan.nodes, plan.tolerated) == (("n1",), ())


def test_warm_cards_are_listed_only_where_no_other_fits() -> None:
    harness = ClaimsHarness(an_api(nodes=3))
    warm = {"GPU-n1-0": {"until": "2099-01-01T00:00:00Z", "effect": "PreferNoSchedule"}}
    notes = {"fracgpu.io/cordons": json.dumps(warm)}
    harness.see_node("n1", harness.api.cards["n1"], annotations=notes)

    assert plan_of(harness, a_pod("p")).nodes == ("n2", "n3")
    assert plan_of(harness, a_pod("q"), without=("n2", "n3")).nodes == ("n1",)
