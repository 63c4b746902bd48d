"""Whether a pod could be disturbed right now, asked before a move of it is planned.

A pod that may not be disturbed never takes the place of one that may. The Eviction API has the last
word all the same: it is asked, with a dry run, before the first step of a move.
"""

from typing import Final

from fracgpu.disruption.candidates.move_mode import HASH_LABEL
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HoldReason
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.workloads.quota import quota_usage
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MoveMode

# Controllers of these kinds are followed; of any other, the pods alone are known.
_FOLLOWED: Final = ("ReplicaSet", "StatefulSet")

_Rules = tuple[tuple[bool, HoldReason], ...]


def why_not_now(state: DisruptionState, candidate: PlacedPod, mode: MoveMode) -> HoldReason | None:
    """Return the first reason against moving a pod in a mode now, or None.

    What is not known speaks against it.
    """
    if state.workloads.unknown:
        return HoldReason.GUARDS_NOT_KNOWN
    rules = (
        *_owner_rules(state, candidate, mode),
        *_budget_rules(state, candidate, mode),
        *(_surge_rules(state, candidate) if mode is MoveMode.SURGE else ()),
    )
    return next((reason for broken, reason in rules if broken), None)


def _owner_rules(state: DisruptionState, candidate: PlacedPod, mode: MoveMode) -> _Rules:
    kind = candidate.info.owner[0] if candidate.info.owner else ""
    found = state.workloads.controllers_of(candidate.owner_uid)
    missing = kind in _FOLLOWED and (not found or _owner_is_missing(found))
    return (
        (missing, HoldReason.OWNER_NOT_KNOWN),
        (any(workload.rolling_out for workload in found), HoldReason.ROLLOUT),
        (any(workload.paused for workload in found), HoldReason.OWNER_PAUSED),
        (
            any(workload.ready < workload.desired for workload in found),
            HoldReason.REPLICAS_NOT_READY,
        ),
        (
            mode is MoveMode.SURGE and any(workload.recreate for workload in found),
            HoldReason.RECREATE,
        ),
    )


def _owner_is_missing(found: tuple[Workload, ...]) -> bool:
    """Report whether a Deployment is named as the owner and is not known."""
    return found[0].owner_kind == "Deployment" and len(found) == 1


def _budget_rules(state: DisruptionState, candidate: PlacedPod, mode: MoveMode) -> _Rules:
    pod = candidate.info
    namespace = pod.record.namespace
    budgets = [
        budget
        for budget in state.workloads.budgets.of(namespace)
        if budget.guards(namespace, pod.labels)
    ]
    return (
        # The Eviction API refuses such a pod for good.
        (len(budgets) > 1, HoldReason.SEVERAL_BUDGETS),
        (any(not budget.observed for budget in budgets), HoldReason.BUDGET_NOT_OBSERVED),
        (any(not _allows(budget, mode) for budget in budgets), HoldReason.BUDGET),
    )


def _allows(budget: PodDisruptionBudget, mode: MoveMode) -> bool:
    """Report whether a budget allows to evict one ready pod.

    A surge evicts it beside a replacement that is Ready, which makes one healthy pod more; how many
    have to be is taken from the controller's scale, and stays. Source: countHealthyPods and
    getExpectedScale in pkg/controller/disruption/disruption.go.
    """
    if mode is MoveMode.SURGE:
        return budget.healthy + 1 > budget.desired_healthy
    return budget.allowed > 0


def _surge_rules(state: DisruptionState, candidate: PlacedPod) -> _Rules:
    pod = candidate.info
    namespace = pod.record.namespace
    quotas = state.workloads.quotas.of(namespace)
    # Adding up what a pod counts takes longer than all other rules; few namespaces have a quota.
    usage = quota_usage(pod.record.containers) if quotas else {}
    return (
        (
            any(
                HASH_LABEL in service.labels and service.selects(namespace, pod.labels)
                for service in state.workloads.services.of(namespace)
            ),
            HoldReason.SERVICE_BY_HASH,
        ),
        (
            any(quota.exceeded_by(usage) for quota in quotas),
            HoldReason.QUOTA,
        ),
    )
