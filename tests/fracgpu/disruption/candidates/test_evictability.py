"""Which pods may not be moved: each rule once."""

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import (
    SYSTEM_PRIORITY,
    disruption_cost,
    mode_of,
    startup_s,
    why_not_evictable,
    why_not_now,
)
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Namespaces, RebalancerPolicy
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.k8s.workloads.quota import ResourceQuota
from fracgpu.k8s.workloads.service_selector import ServiceSelector
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.k8s.workloads.workload_state import ByNamespace, WorkloadState
from fracgpu.request.need import ContainerNeed, PodNeed, Rebalance
from fracgpu.state.allocation import Assignment, Resize, Slice
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Move, MoveMode
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    HOT_CARD,
    a_disruption_state,
    a_placed_pod,
)

POLICY = RebalancerPolicy()
TWO_CARDS = PodNeed(containers=(ContainerNeed(name="main", cards=2, mib=Mib(1000)),))
OPTED_IN: dict[str, Any] = {"rebalance": Rebalance.EVICT}
LESS, MORE = ({"main": (Slice(card=HOT_CARD, mib=Mib(mib)),)} for mib in (1000, 2000))


def refusal(
    *,
    with_sibling: bool = True,
    past: list[Move] | None = None,
    sibling: dict[str, Any] | None = None,
    **facts: Any,
) -> HoldReason | None:
    """Return why pod-a, with one ready sibling by default, may not be moved."""
    pod = a_placed_pod("pod-a", **facts)
    others = [a_placed_pod("pod-b", **(sibling or {}))] if with_sibling else []
    state = a_disruption_state(pods=[pod, *others], past=past or [])
    return why_not_evictable(state, pod, policy=POLICY, now=NOON)


def a_resize(*, granted: Assignment) -> Resize:
    return Resize(asked="2Gi", assigned=LESS, granted=granted, applied=LESS)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"started_at": NOON - timedelta(minutes=15)},
        {"labels": {"pod-template-hash": "5d4f"}, "rebalance": Rebalance.SURGE},
        {"record": {"resize": a_resize(granted=LESS)}},
    ],
)
def test_an_old_ready_pod_of_a_replica_set_may_be_moved(facts: dict[str, Any]) -> None:
    assert refusal(**facts) is None


def test_the_only_replica_of_a_deployment_may_be_moved_because_its_replacement_is_ready_first() -> (
    None
):
    hashed = {"pod-template-hash": "5d4f"}

    assert refusal(with_sibling=False, labels=hashed) is None
    assert refusal(with_sibling=False) is HoldReason.SINGLE_REPLICA


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
        ({"record": {"resize": a_resize(granted=MORE)}}, HoldReason.RESIZED),
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


@pytest.mark.parametrize("claim", ["", "fracgpu-0123456789"])
@pytest.mark.parametrize("claims", [False, True, None])
def test_a_pod_stays_whose_namespace_has_gone_over_to_the_other_wiring(
    claim: str, claims: bool | None
) -> None:
    """Nothing says that its replacement would find room; with None there would be none."""
    pods = [a_placed_pod(name, device_claim=claim) for name in ("pod-a", "pod-b")]
    state = replace(a_disruption_state(pods=pods), claims_in={"ml": claims})

    found = why_not_evictable(state, pods[0], policy=POLICY, now=NOON)

    assert found is (None if claims is bool(claim) else HoldReason.OTHER_SCHEDULER)


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


SURGE, EVICT = MoveMode.SURGE, MoveMode.EVICT
LABELS = {"app": "web", "pod-template-hash": "h1"}
REPLICASET = Workload(
    uid="owner-1",
    kind="ReplicaSet",
    namespace="ml",
    name="web-h1",
    owner="deploy-1",
    owner_kind="Deployment",
    desired=2,
    ready=2,
    current=2,
    total=2,
)
DEPLOYMENT = replace(REPLICASET, uid="deploy-1", kind="Deployment", owner="", owner_kind="")


def a_budget(**facts: Any) -> PodDisruptionBudget:
    known: dict[str, Any] = {
        "namespace": "ml",
        "name": "web",
        "allowed": 1,
        "healthy": 2,
        "desired_healthy": 1,
        "labels": {"app": "web"},
    }
    return PodDisruptionBudget(**(known | facts))


def why(
    mode: MoveMode,
    *,
    replicaset: dict[str, Any] | None = None,
    deployment: dict[str, Any] | None = None,
    owner: tuple[str, str, str] = ("ReplicaSet", "web-h1", "owner-1"),
    pod_facts: dict[str, Any] | None = None,
    **guards: Any,
) -> HoldReason | None:
    pod = a_placed_pod(
        "pod-a",
        labels=LABELS,
        owner=owner,
        record={"containers": (ContainerSpec(name="main", requests={"cpu": "1"}),)},
        **(pod_facts or {}),
    )
    workloads = (
        replace(REPLICASET, **(replicaset or {})),
        replace(DEPLOYMENT, **(deployment or {})),
    )
    known = WorkloadState(
        workloads={workload.uid: workload for workload in workloads},
        budgets=ByNamespace(guards.get("budgets", ())),
        quotas=ByNamespace(guards.get("quotas", ())),
        services=ByNamespace(guards.get("services", ())),
        unknown=guards.get("unknown", ()),
    )
    state = replace(a_disruption_state(pods=[pod]), workloads=known)
    return why_not_now(state, pod, mode)


@pytest.mark.parametrize("mode", [SURGE, EVICT])
def test_a_settled_owner_and_a_budget_with_room_hold_nothing(mode: MoveMode) -> None:
    assert why(mode) is None
    assert why(mode, budgets=[a_budget()]) is None


@pytest.mark.parametrize("mode", [SURGE, EVICT])
def test_what_could_not_be_read_speaks_against_every_move(mode: MoveMode) -> None:
    assert why(mode, unknown=("services",)) is HoldReason.GUARDS_NOT_KNOWN


@pytest.mark.parametrize("mode", [SURGE, EVICT])
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"replicaset": {"uid": "other"}}, HoldReason.OWNER_NOT_KNOWN),
        ({"deployment": {"uid": "other"}}, HoldReason.OWNER_NOT_KNOWN),
        ({"replicaset": {"total": 1}}, HoldReason.ROLLOUT),
        ({"replicaset": {"terminating": True}}, HoldReason.ROLLOUT),
        ({"deployment": {"current": 1}}, HoldReason.ROLLOUT),
        ({"deployment": {"observed": False}}, HoldReason.ROLLOUT),
        ({"deployment": {"paused": True}}, HoldReason.OWNER_PAUSED),
        ({"replicaset": {"ready": 1}}, HoldReason.REPLICAS_NOT_READY),
    ],
)
def test_an_owner_that_is_busy_holds_its_pods(
    mode: MoveMode, facts: dict[str, Any], reason: HoldReason
) -> None:
    assert why(mode, **facts) is reason


def test_a_deployment_that_recreates_never_surges() -> None:
    assert why(SURGE, deployment={"recreate": True}) is HoldReason.RECREATE
    assert why(EVICT, deployment={"recreate": True}) is None


def test_an_owner_of_the_owner_that_is_not_known_holds() -> None:
    of_a_machine: dict[str, Any] = {"owner": "m", "owner_kind": "InferenceSet"}

    assert why(EVICT, replicaset=of_a_machine) is HoldReason.OWNER_NOT_KNOWN
    assert why(SURGE, replicaset=of_a_machine) is HoldReason.OWNER_NOT_KNOWN


def test_a_rollout_of_argo_is_known_by_its_replicasets() -> None:
    rollout = {"owner": "rollout", "owner_kind": "Rollout"}

    assert why(SURGE, replicaset=rollout) is None
    # While it rolls out, another ReplicaSet of it has pods.
    both: dict[str, Any] = {"replicaset": rollout, "deployment": {**rollout, "kind": "ReplicaSet"}}
    assert why(SURGE, **both) is HoldReason.ROLLOUT
    argos = {"rollouts-pod-template-hash": "5d4f8c"}
    assert mode_of(a_placed_pod("a", labels=argos).info) is SURGE


def test_what_an_author_rules_out_holds_unless_the_pod_asks_for_it() -> None:
    no_surge: dict[str, Any] = {"deployment": {"no_surge": True}}
    forbidden: dict[str, Any] = {
        "budgets": [a_budget(forbids=True, allowed=0, healthy=2, desired_healthy=2)]
    }
    asked: dict[str, Any] = {"rebalance": Rebalance.SURGE}

    assert why(SURGE, **no_surge) is HoldReason.NO_SURGE
    assert why(EVICT, **no_surge) is None
    assert why(SURGE, **no_surge, pod_facts=asked) is None
    assert why(SURGE, **forbidden) is HoldReason.BUDGET_FORBIDS
    assert why(SURGE, **forbidden, pod_facts=asked) is None
    # As promised, an only replica that must stay is replaced first.
    only = [a_budget(allowed=0, healthy=1, desired_healthy=1)]
    assert why(SURGE, budgets=only) is None


@pytest.mark.parametrize(
    ("wish", "whose", "held"),
    [
        (None, Namespaces.ALL, False),
        ("allow", Namespaces.ALL, False),
        ("never", Namespaces.ALL, True),
        (None, Namespaces.LABELLED, True),
        ("never", Namespaces.LABELLED, True),
        ("allow", Namespaces.LABELLED, False),
    ],
)
def test_a_namespace_opts_in_or_out_by_its_label(
    wish: str | None, whose: Namespaces, *, held: bool
) -> None:
    pod = a_placed_pod("pod-a")
    state = a_disruption_state(pods=[pod, a_placed_pod("pod-b")])
    state.scheduling.namespaces = {"ml": {"fracgpu.io/rebalance": wish} if wish else {}}

    found = why_not_evictable(state, pod, policy=replace(POLICY, namespaces=whose), now=NOON)

    assert found is (HoldReason.NAMESPACE if held else None)


def test_owners_that_are_not_followed_are_left_to_their_pods() -> None:
    assert why(EVICT, owner=("Job", "train", "job-1")) is None


@pytest.mark.parametrize("mode", [SURGE, EVICT])
def test_two_budgets_over_one_pod_hold_it(mode: MoveMode) -> None:
    every = a_budget(name="every", labels={}, selects_all=True)

    assert why(mode, budgets=[a_budget(), every]) is HoldReason.SEVERAL_BUDGETS
    assert why(mode, budgets=[a_budget(), replace(every, namespace="other")]) is None
    assert why(mode, budgets=[a_budget(observed=False)]) is HoldReason.BUDGET_NOT_OBSERVED


def test_a_budget_without_room_stops_an_eviction_and_not_a_surge() -> None:
    tight = a_budget(allowed=0, healthy=2, desired_healthy=2)

    assert why(EVICT, budgets=[tight]) is HoldReason.BUDGET
    assert why(SURGE, budgets=[tight]) is None


def test_a_surge_needs_a_budget_that_allows_once_the_replacement_is_ready() -> None:
    too_few = a_budget(allowed=0, healthy=1, desired_healthy=2)

    assert why(SURGE, budgets=[too_few]) is HoldReason.BUDGET


def test_a_surge_needs_room_in_the_quota_and_an_eviction_one_that_is_not_exceeded() -> None:
    exceeded = [ResourceQuota(namespace="ml", name="q", left={"pods": Fraction(-1)})]
    full = [ResourceQuota(namespace="ml", name="q", left={"pods": Fraction(0)})]
    elsewhere = [ResourceQuota(namespace="other", name="q", left={"pods": Fraction(0)})]

    assert why(SURGE, quotas=full) is HoldReason.QUOTA
    assert why(SURGE, quotas=elsewhere) is None
    assert why(EVICT, quotas=full) is None
    assert why(EVICT, quotas=exceeded) is HoldReason.QUOTA


def test_a_service_that_selects_by_the_hash_would_lose_the_released_pod() -> None:
    by_hash = [ServiceSelector(namespace="ml", name="web", labels=LABELS)]
    by_app = [ServiceSelector(namespace="ml", name="web", labels={"app": "web"})]
    other = [ServiceSelector(namespace="ml", name="x", labels={"pod-template-hash": "h0"})]

    assert why(SURGE, services=by_hash) is HoldReason.SERVICE_BY_HASH
    assert why(SURGE, services=by_app) is None
    assert why(SURGE, services=other) is None
    assert why(EVICT, services=by_hash) is None


SURGED = {"labels": {"pod-template-hash": "5d4f8c"}}


@pytest.mark.parametrize(
    ("facts", "mib", "points"),
    [
        pytest.param(SURGED, 10 * 1024, 1.1, id="it is replaced first, and reloads 10 GiB"),
        pytest.param({**SURGED, "priority": 5}, 0, 1.5, id="someone gave it a priority"),
        pytest.param({}, 0, 1.5, id="it ends before the new one is ready"),
        pytest.param({"priority": 1}, 20 * 1024, 2.2, id="all of these"),
    ],
)
def test_the_cost_of_a_pod(facts: dict[str, Any], mib: int, points: float) -> None:
    pod = a_placed_pod("p", **facts)

    assert disruption_cost(a_disruption_state(), pod, mib=mib) == pytest.approx(points)


HASHED = {"pod-template-hash": "5d4f8c"}


def test_a_pod_whose_node_was_lost_for_a_moment_has_not_taken_weeks_to_start() -> None:
    start = NOON - timedelta(days=30)
    flapped = a_placed_pod("a", started_at=start, ready_at=start + timedelta(days=20))
    state = a_disruption_state(pods=[flapped])

    assert startup_s(state, flapped) == 0
    assert disruption_cost(state, flapped, mib=0) == disruption_cost(
        state, a_placed_pod("new"), mib=0
    )


def test_what_an_owners_pods_take_to_be_ready_is_learnt_and_costs() -> None:
    def took(uid: str, seconds: float) -> PlacedPod:
        start = NOON - timedelta(hours=1)
        return a_placed_pod(uid, started_at=start, ready_at=start + timedelta(seconds=seconds))

    pods = [took("a", 60), took("b", 90), took("c", 600), a_placed_pod("d")]
    state = a_disruption_state(pods=pods)

    assert startup_s(state, pods[0]) == 90
    assert startup_s(a_disruption_state(), a_placed_pod("pod-a")) == 0
    slow = disruption_cost(state, pods[0], mib=0)
    assert slow - disruption_cost(a_disruption_state(), pods[3], mib=0) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        pytest.param({"labels": HASHED}, SURGE, id="of a Deployment"),
        pytest.param({"labels": HASHED, "rebalance": Rebalance.SURGE}, SURGE, id="asks for it"),
        pytest.param({"labels": HASHED, **OPTED_IN}, EVICT, id="asks for an eviction"),
        pytest.param({}, EVICT, id="of a bare ReplicaSet, which selects by no hash"),
        pytest.param({"labels": HASHED, "owner": None}, EVICT, id="of nobody"),
        pytest.param({"labels": HASHED, "owner": ("Job", "train", "u")}, EVICT, id="of a Job"),
    ],
)
def test_only_what_is_of_a_deployment_is_replaced_first(
    facts: dict[str, Any], mode: MoveMode
) -> None:
    assert mode_of(a_placed_pod("a", **facts).info) is mode
