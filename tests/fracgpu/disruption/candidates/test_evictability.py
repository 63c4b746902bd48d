"""Which pods may not be moved: each rule once."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import SYSTEM_PRIORITY, why_not_evictable
from fracgpu.disruption.move import HoldReason, PastMove
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.request.need import ContainerNeed, PodNeed, Rebalance
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    HOT_CARD,
    a_disruption_state,
    a_past_move,
    a_placed_pod,
)

POLICY = RebalancerPolicy()
TWO_CARDS = PodNeed(containers=(ContainerNeed(name="main", cards=2, mib=Mib(1000)),))
OPTED_IN: dict[str, Any] = {"rebalance": Rebalance.EVICT}


def refusal(
    *,
    with_sibling: bool = True,
    past: list[PastMove] | None = None,
    sibling: dict[str, Any] | None = None,
    **facts: Any,
) -> HoldReason | None:
    """Return why pod-a, with one ready sibling by default, may not be moved."""
    pod = a_placed_pod("pod-a", **facts)
    others = [a_placed_pod("pod-b", **(sibling or {}))] if with_sibling else []
    state = a_disruption_state(pods=[pod, *others], past=past or [])
    return why_not_evictable(state, pod, policy=POLICY, now=NOON)


def test_an_old_ready_pod_of_a_replica_set_may_be_moved() -> None:
    assert refusal() is None


def test_the_only_replica_of_a_deployment_may_be_moved_because_its_replacement_is_ready_first() -> (
    None
):
    hashed = {"pod-template-hash": "5d4f"}

    assert refusal(with_sibling=False, labels=hashed) is None
    assert refusal(with_sibling=False) is HoldReason.SINGLE_REPLICA


def test_a_pod_of_a_deployment_that_asks_for_a_surge_may_be_moved() -> None:
    hashed = {"pod-template-hash": "5d4f"}

    assert refusal(labels=hashed, rebalance=Rebalance.SURGE) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"record": {"terminating": True}}, HoldReason.TERMINATING),
        ({"ready": False}, HoldReason.NOT_READY),
        ({"phase": "Pending"}, HoldReason.NOT_READY),
        ({"started_at": NOON - timedelta(minutes=14)}, HoldReason.TOO_YOUNG),
        ({"started_at": None}, HoldReason.TOO_YOUNG),
        ({"priority": SYSTEM_PRIORITY}, HoldReason.SYSTEM_CRITICAL),
        ({"rebalance": Rebalance.NEVER}, HoldReason.NEVER),
        ({"rebalance": Rebalance.SURGE}, HoldReason.SURGE_ONLY),  # a bare ReplicaSet
        (
            {"rebalance": Rebalance.SURGE, "owner": ("StatefulSet", "db", "owner-1")},
            HoldReason.SURGE_ONLY,
        ),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, HoldReason.PROTECTED),
        (
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            HoldReason.PROTECTED,
        ),
        (
            {"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true"}},
            HoldReason.PROTECTED,
        ),
        ({"owner": None}, HoldReason.NO_OWNER),
        ({"owner": ("DaemonSet", "agent", "owner-1")}, HoldReason.OWNER_KIND),
        ({"owner": ("Node", "n1", "owner-1")}, HoldReason.OWNER_KIND),
        ({"owner": ("RayCluster", "ray", "owner-1")}, HoldReason.OWNER_KIND),
        ({"owner": ("StatefulSet", "db", "owner-1")}, HoldReason.OPT_IN),
        ({"owner": ("Job", "train", "owner-1")}, HoldReason.OPT_IN),
        ({"need": None}, HoldReason.NEED_UNREADABLE),
        ({"record": {"assignment": None, "problem": "no JSON"}}, HoldReason.ASSIGNMENT_UNREADABLE),
        ({"need": TWO_CARDS}, HoldReason.SEVERAL_CARDS),
        (
            {
                "record": {
                    "assignment": {
                        "main": (
                            Slice(card=HOT_CARD, mib=Mib(1)),
                            Slice(card=CardUuid("GPU-other"), mib=Mib(1)),
                        )
                    }
                }
            },
            HoldReason.SEVERAL_CARDS,
        ),
        ({"scheduler_name": "default-scheduler"}, HoldReason.OTHER_SCHEDULER),
        (
            {"rules": SchedulingConstraints(unjudged=("hostPath",))},
            HoldReason.UNJUDGED,
        ),
        (
            {"rules": SchedulingConstraints(keeps_local_data=True)},
            HoldReason.LOCAL_DATA,
        ),
        ({"with_sibling": False}, HoldReason.SINGLE_REPLICA),
        ({"sibling": {"ready": False}}, HoldReason.REPLICAS_NOT_READY),
        ({"sibling": {"record": {"terminating": True}}}, HoldReason.REPLICAS_NOT_READY),
    ],
)
def test_a_pod_is_held_back_with_the_reason(facts: dict[str, Any], reason: HoldReason) -> None:
    assert refusal(**facts) is reason


@pytest.mark.parametrize(
    "facts",
    [
        {
            "owner": ("StatefulSet", "db", "owner-1"),
            "sibling": {"owner": ("StatefulSet", "db", "owner-1")},
        },
        {"owner": ("Job", "train", "owner-1"), "with_sibling": False},
        {"with_sibling": False},
        {"rules": SchedulingConstraints(keeps_local_data=True)},
    ],
)
def test_who_opts_in_to_eviction_may_be_moved(facts: dict[str, Any]) -> None:
    assert refusal(**facts) is not None
    assert refusal(**facts, **OPTED_IN) is None


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        ([a_past_move(minutes_ago=59, owner_uid="owner-1")], HoldReason.OWNER_COOLDOWN),
        ([a_past_move(minutes_ago=61, owner_uid="owner-1")], None),
        ([a_past_move(minutes_ago=1, owner_uid="another")], None),
        (
            [a_past_move(minutes_ago=300, under_way=True, owner_uid="owner-1")],
            HoldReason.OWNER_COOLDOWN,
        ),
        (
            [a_past_move(minutes_ago=m, owner_uid="owner-1") for m in (200, 300, 400)],
            HoldReason.OWNER_BUDGET,
        ),
        (
            [a_past_move(minutes_ago=m, owner_uid=f"owner-{m}") for m in (10, 20)],
            HoldReason.NAMESPACE_BUDGET,
        ),
        (
            [a_past_move(minutes_ago=m, namespace="other") for m in (10, 20, 30)],
            None,
        ),
    ],
)
def test_budgets_of_owner_and_namespace_hold_a_pod_back(
    past: list[PastMove], reason: HoldReason | None
) -> None:
    assert refusal(past=past) is reason


@pytest.mark.parametrize(
    ("useless", "hours", "held"), [(1, 1.9, True), (1, 2.1, False), (5, 23.9, True)]
)
def test_each_useless_move_doubles_the_owners_rest_up_to_a_day(
    useless: int, hours: float, held: bool
) -> None:
    past = [
        PastMove(
            move=past_move.move, started_at=past_move.started_at, under_way=False, useless=True
        )
        for past_move in [a_past_move(minutes_ago=60 * hours, owner_uid="owner-1")] * useless
    ]
    roomy = RebalancerPolicy(max_per_owner_per_day=100)
    pod = a_placed_pod("pod-a")
    state = a_disruption_state(pods=[pod, a_placed_pod("pod-b")], past=past)

    found = why_not_evictable(state, pod, policy=roomy, now=NOON)

    assert (found is HoldReason.OWNER_COOLDOWN) is held
