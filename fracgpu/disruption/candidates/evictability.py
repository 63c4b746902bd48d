"""Whether a pod may be moved at all: the first rule that forbids it."""

from datetime import datetime, timedelta
from typing import Final

from fracgpu.disruption.candidates.move_mode import mode_of
from fracgpu.disruption.disruption_state import DisruptionState, budgets_of
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.request.need import Rebalance
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MoveMode
from fracgpu.state.pod_info import PodInfo

SYSTEM_PRIORITY: Final = 2_000_000_000  # system-cluster-critical and above
_OWNERS_BY_DEFAULT: Final = ("ReplicaSet", "ReplicationController")
_OWNERS_OPTED_IN: Final = ("StatefulSet", "Job")
# Annotations that protect a pod from other evictors protect it from us as well.
_PROTECTED_BY: Final = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
}


def why_not_evictable(
    state: DisruptionState, candidate: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> HoldReason | None:
    """Return the first reason that forbids moving a pod, or None if it may be moved."""
    rules = (
        *_state_rules(candidate.info, policy=policy, now=now),
        *_protection_rules(candidate.info),
        *_placement_rules(state, candidate),
        *_owner_rules(state, candidate),
    )
    refusal = next((reason for broken, reason in rules if broken), None)
    return refusal or budgets_of(state, policy=policy, now=now).of_pod(
        candidate.uid, owner_uid=candidate.owner_uid, namespace=candidate.info.record.namespace
    )


_Rules = tuple[tuple[bool, HoldReason], ...]


def _state_rules(pod: PodInfo, *, policy: RebalancerPolicy, now: datetime) -> _Rules:
    age = now - pod.started_at if pod.started_at else timedelta(0)
    return (
        (pod.record.terminating, HoldReason.TERMINATING),
        (pod.phase != "Running" or not pod.ready, HoldReason.NOT_READY),
        (age < timedelta(seconds=policy.min_pod_age_s), HoldReason.TOO_YOUNG),
        (pod.priority >= SYSTEM_PRIORITY, HoldReason.SYSTEM_CRITICAL),
    )


def _protection_rules(pod: PodInfo) -> _Rules:
    kind = pod.owner[0] if pod.owner else ""
    opted_in = pod.rebalance is Rebalance.EVICT
    return (
        (pod.rebalance is Rebalance.NEVER, HoldReason.NEVER),
        (
            any(pod.annotations.get(key) == value for key, value in _PROTECTED_BY.items()),
            HoldReason.PROTECTED,
        ),
        (not kind, HoldReason.NO_OWNER),
        (kind not in (*_OWNERS_BY_DEFAULT, *_OWNERS_OPTED_IN), HoldReason.OWNER_KIND),
        (
            pod.rebalance is Rebalance.SURGE and mode_of(pod) is not MoveMode.SURGE,
            HoldReason.SURGE_ONLY,
        ),
        (kind in _OWNERS_OPTED_IN and not opted_in, HoldReason.OPT_IN),
    )


def _placement_rules(state: DisruptionState, candidate: PlacedPod) -> _Rules:
    pod, constraints = candidate.info, candidate.scheduling_constraints
    held = state.snapshot.pods.get(candidate.uid)
    opted_in = pod.rebalance is Rebalance.EVICT
    need = pod.need
    return (
        (need is None or not need.containers, HoldReason.NEED_UNREADABLE),
        (bool(pod.record.problem), HoldReason.ASSIGNMENT_UNREADABLE),
        (held is not None and len(held.by_card) > 1, HoldReason.SEVERAL_CARDS),
        (
            need is not None and any(container.cards > 1 for container in need.containers),
            HoldReason.SEVERAL_CARDS,
        ),
        (pod.scheduler_name != state.scheduler_name, HoldReason.OTHER_SCHEDULER),
        (bool(constraints.unjudged), HoldReason.UNJUDGED),
        (constraints.keeps_local_data and not opted_in, HoldReason.LOCAL_DATA),
    )


def _owner_rules(state: DisruptionState, candidate: PlacedPod) -> _Rules:
    others = [pod.info for pod in state.pods_of(candidate.owner_uid) if pod is not candidate]
    # A surge leaves an only replica in place until its replacement is Ready.
    interrupted = mode_of(candidate.info) is MoveMode.EVICT and not others
    opted_in = candidate.info.rebalance is Rebalance.EVICT
    return (
        (interrupted and not opted_in, HoldReason.SINGLE_REPLICA),
        (
            any(not other.ready or other.record.terminating for other in others),
            HoldReason.REPLICAS_NOT_READY,
        ),
    )
