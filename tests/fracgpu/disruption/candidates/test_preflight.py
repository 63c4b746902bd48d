"""Whether a pod could be disturbed right now."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from fracgpu.disruption.candidates import why_not_now
from fracgpu.disruption.move import HoldReason
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.workloads.quota import ResourceQuota
from fracgpu.k8s.workloads.service_selector import ServiceSelector
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.k8s.workloads.workload_state import ByNamespace, WorkloadState
from fracgpu.state.move_object import MoveMode
from tests.support.rebalancing import a_disruption_state, a_placed_pod

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
    **guards: Any,
) -> HoldReason | None:
    pod = a_placed_pod(
        "pod-a",
        labels=LABELS,
        owner=owner,
        record={"containers": (ContainerSpec(name="main", requests={"cpu": "1"}),)},
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


def test_a_replicaset_of_another_controller_is_followed_no_further() -> None:
    assert why(EVICT, replicaset={"owner": "rollout", "owner_kind": "Rollout"}) is None


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


def test_a_surge_needs_room_in_the_quota_and_an_eviction_does_not() -> None:
    full = [ResourceQuota(namespace="ml", name="q", left={"pods": Fraction(0)})]
    elsewhere = [ResourceQuota(namespace="other", name="q", left={"pods": Fraction(0)})]

    assert why(SURGE, quotas=full) is HoldReason.QUOTA
    assert why(SURGE, quotas=elsewhere) is None
    assert why(EVICT, quotas=full) is None


def test_a_service_that_selects_by_the_hash_would_lose_the_released_pod() -> None:
    by_hash = [ServiceSelector(namespace="ml", name="web", labels=LABELS)]
    by_app = [ServiceSelector(namespace="ml", name="web", labels={"app": "web"})]
    other = [ServiceSelector(namespace="ml", name="x", labels={"pod-template-hash": "h0"})]

    assert why(SURGE, services=by_hash) is HoldReason.SERVICE_BY_HASH
    assert why(SURGE, services=by_app) is None
    assert why(SURGE, services=other) is None
    assert why(EVICT, services=by_hash) is None
