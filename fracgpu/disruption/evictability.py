"""Which pods may be moved at all: the first rule that keeps one where it is."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HoldReason, PastMove, begun_within
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.request.need import Rebalance
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.pod_info import PodInfo

SYSTEM_PRIORITY: Final = 2_000_000_000  # system-cluster-critical and above
_OWNERS_BY_DEFAULT: Final = ("ReplicaSet", "ReplicationController")
_OWNERS_OPTED_IN: Final = ("StatefulSet", "Job")
# What other evictors honour, we honour: whoever protected a pod from them meant us as well.
_PROTECTED_BY: Final = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
}


def why_not_evictable(
    state: DisruptionState, occupant: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> HoldReason | None:
    """Give the first rule that keeps a pod where it is."""
    rules = (
        *_state_rules(occupant.info, policy=policy, now=now),
        *_wish_rules(occupant.info),
        *_placing_rules(state, occupant),
        *_owner_rules(state, occupant, policy=policy, now=now),
    )
    return next((reason for broken, reason in rules if broken), None)


_Rules = tuple[tuple[bool, HoldReason], ...]


def _state_rules(view: PodInfo, *, policy: RebalancerPolicy, now: datetime) -> _Rules:
    age = now - view.started_at if view.started_at else timedelta(0)
    return (
        (view.record.terminating, HoldReason.TERMINATING),
        (view.phase != "Running" or not view.ready, HoldReason.NOT_READY),
        (age < timedelta(seconds=policy.min_pod_age_s), HoldReason.TOO_YOUNG),
        (view.priority >= SYSTEM_PRIORITY, HoldReason.SYSTEM_CRITICAL),
    )


def _wish_rules(view: PodInfo) -> _Rules:
    kind = view.owner[0] if view.owner else ""
    opted_in = view.rebalance is Rebalance.EVICT
    return (
        (view.rebalance is Rebalance.NEVER, HoldReason.NEVER),
        (
            any(view.annotations.get(key) == value for key, value in _PROTECTED_BY.items()),
            HoldReason.PROTECTED,
        ),
        (not kind, HoldReason.NO_OWNER),
        (kind not in (*_OWNERS_BY_DEFAULT, *_OWNERS_OPTED_IN), HoldReason.OWNER_KIND),
        (kind in _OWNERS_OPTED_IN and not opted_in, HoldReason.OPT_IN),
    )


def _placing_rules(state: DisruptionState, pod: PlacedPod) -> _Rules:
    view, constraints = pod.info, pod.scheduling_constraints
    held = state.snapshot.pods.get(pod.uid)
    opted_in = view.rebalance is Rebalance.EVICT
    need = view.need
    return (
        (need is None or not need.containers, HoldReason.NEED_UNREADABLE),
        (bool(view.record.problem), HoldReason.ASSIGNMENT_UNREADABLE),
        (held is not None and len(held.by_card) > 1, HoldReason.SEVERAL_CARDS),
        (
            need is not None and any(it.cards > 1 for it in need.containers),
            HoldReason.SEVERAL_CARDS,
        ),
        (view.scheduler_name != state.scheduler_name, HoldReason.OTHER_SCHEDULER),
        (bool(view.constraints or constraints.unjudged), HoldReason.UNJUDGED),
        (constraints.keeps_local_data and not opted_in, HoldReason.LOCAL_DATA),
    )


def _owner_rules(
    state: DisruptionState, pod: PlacedPod, *, policy: RebalancerPolicy, now: datetime
) -> _Rules:
    owner = pod.owner_uid
    others = [it.info for it in state.pods.values() if it.owner_uid == owner and it is not pod]
    opted_in = pod.info.rebalance is Rebalance.EVICT
    of_owner = [it for it in state.past if it.move.owner_uid == owner]
    namespace = pod.info.record.namespace
    this_hour = begun_within(state.past, hours=1, now=now)
    return (
        (not others and not opted_in, HoldReason.SINGLE_REPLICA),
        (
            any(not it.ready or it.record.terminating for it in others),
            HoldReason.REPLICAS_NOT_READY,
        ),
        (_owner_rests(of_owner, policy=policy, now=now), HoldReason.OWNER_COOLDOWN),
        (
            len(begun_within(of_owner, hours=24, now=now)) >= policy.max_per_owner_per_day,
            HoldReason.OWNER_BUDGET,
        ),
        (
            sum(it.move.namespace == namespace for it in this_hour)
            >= policy.max_per_namespace_per_hour,
            HoldReason.NAMESPACE_BUDGET,
        ),
    )


def _owner_rests(of_owner: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime) -> bool:
    """Tell whether an owner had a move lately; each useless one doubles its rest, to a day."""
    useless = sum(it.useless for it in of_owner)
    rest_s = min(policy.owner_cooldown_s * 2 ** min(useless, 10), 86400.0)
    return any(it.under_way for it in of_owner) or any(
        now - it.started_at < timedelta(seconds=rest_s) for it in of_owner
    )
