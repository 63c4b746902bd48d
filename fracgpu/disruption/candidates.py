"""Whether a pod may be moved, in which mode, and what that costs.

It may be moved in general (`why_not_evictable`), and right now (`why_not_now`), which is asked
before a move of it is planned: a pod that may not be disturbed never takes the place of one that
may. The Eviction API has the last word all the same: it is asked, with a dry run, before the first
step of a move.

The replacement comes to be beside the pod, or after its eviction. A pod is released from its
ReplicaSet by another value of the label by which that selects it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from statistics import median
from typing import Final

from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState, budgets_of
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Namespaces, RebalancerPolicy
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.workloads.quota import quota_usage
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.placement.placement import allocation_on_one_card
from fracgpu.request.need import Rebalance
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import (
    Beneficiary,
    CardReference,
    MoveMode,
    MoveReason,
    MoveSpec,
    OwnerReference,
    PodReference,
    RequestedShare,
)
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib

# A Deployment's ReplicaSet selects its pods by the first, that of an Argo Rollout by the second.
HASH_LABEL: Final = "pod-template-hash"
HASH_LABELS: Final = (HASH_LABEL, "rollouts-pod-template-hash")
_ROLLOUT: Final = "Rollout"
RELEASED_SUFFIX: Final = ".moved"  # of the label's value, while the pod is released
_LONGEST_LABEL: Final = 63


# The kinds of owners whose pods are moved, with the API version of each.
OWNERS: Final = {
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
}
_OWNERS_OPTED_IN: Final = ("StatefulSet", "Job")


def mode_of(pod: PodInfo) -> MoveMode:
    """Return how a pod would be moved, if it may be moved at all.

    A surge changes the label by which a Deployment's ReplicaSet selects the pod. Every other
    controller makes a replacement only once the pod is gone.
    """
    by_replicaset = pod.owner is not None and pod.owner[0] == "ReplicaSet"
    if by_replicaset and hash_label_of(pod.labels) and pod.rebalance is not Rebalance.EVICT:
        return MoveMode.SURGE
    return MoveMode.EVICT


def make_move(  # noqa: PLR0913 - the facts of a move that its pod does not have
    state: DisruptionState,
    candidate: PlacedPod,
    *,
    source: tuple[str, CardUuid],
    target: tuple[str, CardUuid],
    busy_ratio: float,
    level_ratio: float,
    gain_points: float,
    saved_points: float = 0.0,
    method: str,
    policy: RebalancerPolicy,
    now: datetime,
    beneficiary: Beneficiary | None = None,
    plan: str = "",
    requested: bool = False,
) -> MoveSpec:
    """Return the move of a pod, with what it holds, from one node and card to another.

    Args:
        state: on which it is decided.
        candidate: the pod; it has a need, and an owner of a kind that is moved.
        source: the node and the card that it leaves.
        target: the node and the card where its replacement fits.
        busy_ratio: its measured share of the source's time, 0..1.
        level_ratio: how busy the source is, 0..1.
        gain_points: what the move is expected to save less what it costs, in per cent of one card.
        saved_points: the forecast of what it saves, by which later ones are believed.
        method: the name of the method that plans it.
        policy: by which it is decided.
        now: when.
        beneficiary: the waiting pod that gets in, if there is one.
        plan: what the moves of one plan have in common; empty if the plan is this one move.
        requested: people want it, so that it needs no approval.
    """
    pod = candidate.info
    assert pod.need is not None, "a pod that may be moved has a need"
    assert pod.owner is not None, "a pod that may be moved has an owner"
    kind, owner, owner_uid = pod.owner
    allocation = state.snapshot.pods[candidate.uid].by_card[source[1]]
    there = allocation_on_one_card(pod.need, state.snapshot.nodes[target[0]].cards[target[1]].card)
    leaves, takes = _card(state, *source), _card(state, *target)
    why = f"card {leaves.display} is busy {level_ratio:.0%} of the time"
    if beneficiary is not None:
        why = f"pod {beneficiary.key} waits for card {leaves.display}"
    elif requested:
        why = f"people want it off card {leaves.display}"
    mode, grace_s = mode_of(pod), grace_of(pod)
    return MoveSpec(
        pod=PodReference(namespace=pod.record.namespace, name=pod.record.name, uid=candidate.uid),
        owner=OwnerReference(api_version=OWNERS[kind], kind=kind, name=owner, uid=owner_uid),
        source=leaves,
        target=takes,
        request=RequestedShare(
            mib=allocation.mib,
            cores=allocation.cores,
            slots=allocation.slots,
            limit_mib=there.limit_mib if there.borrow_mib else Mib(0),
        ),
        mode=mode,
        method=method,
        plan=plan,
        reason=MoveReason(
            message=f"{why}; card {takes.display} has room",
            busy_ratio=busy_ratio,
            level_ratio=level_ratio,
            gain_points=round(gain_points, 6),
            saved_points=round(saved_points, 6),
        ),
        reserved_until=now + _longest_before_bound(mode, policy, grace_s=grace_s),
        source_denied_until=now + timedelta(seconds=policy.return_cooldown_s),
        beneficiary=beneficiary,
        startup_s=round(startup_s(state, candidate), 3),
        grace_s=grace_s,
        approved=requested,
    )


def _card(state: DisruptionState, node: str, card: CardUuid) -> CardReference:
    index = state.snapshot.nodes[node].cards[card].card.index
    return CardReference(node=node, card=card, index=index, display=f"{node}/{index}")


def shown(spec: MoveSpec, *, now: datetime) -> MoveSpec:
    """Return a move that is only rehearsed or recommended: it keeps nothing on any card."""
    beneficiary = spec.beneficiary
    if beneficiary is not None:
        beneficiary = structs.replace(beneficiary, held_until=now)
    return structs.replace(
        spec, reserved_until=now, source_denied_until=now, beneficiary=beneficiary
    )


def approved(spec: MoveSpec, *, policy: RebalancerPolicy, now: datetime) -> MoveSpec:
    """Return the move that a recommended one becomes once people have approved it."""
    beneficiary = spec.beneficiary
    if beneficiary is not None:
        until = now + timedelta(seconds=policy.make_room_hold_s)
        beneficiary = structs.replace(beneficiary, held_until=until)
    return structs.replace(
        spec,
        approved=True,
        reserved_until=now + _longest_before_bound(spec.mode, policy, grace_s=spec.grace_s),
        source_denied_until=now + timedelta(seconds=policy.return_cooldown_s),
        beneficiary=beneficiary,
    )


_LONGEST_GRACE_S: Final = 3600.0


def grace_of(pod: PodInfo) -> float:
    """Return how many seconds before its move a pod wants to be told; 0 without a number."""
    wish = pod.annotations.get(names.MOVE_GRACE, "")
    return min(float(wish), _LONGEST_GRACE_S) if wish.isascii() and wish.isdecimal() else 0.0


def _longest_before_bound(mode: MoveMode, policy: RebalancerPolicy, *, grace_s: float) -> timedelta:
    """Return how long after its plan a move may still need the reservation."""
    before = policy.plan_ttl_s + policy.notice_s + grace_s + policy.replacement_ttl_s
    return timedelta(seconds=before + (policy.evict_ttl_s if mode is MoveMode.EVICT else 0.0))


def hash_label_of(labels: Mapping[str, str]) -> str:
    """Return the label by which its ReplicaSet selects a pod; empty without one."""
    return next((label for label in HASH_LABELS if labels.get(label)), "")


def released_value(hash_value: str) -> str:
    """Return what the label becomes, so that no ReplicaSet selects the pod any more."""
    return f"{hash_value[: _LONGEST_LABEL - len(RELEASED_SUFFIX)]}{RELEASED_SUFFIX}"


def original_value(label: str) -> str:
    """Return what the label was before :func:`released_value` changed it."""
    return label.removesuffix(RELEASED_SUFFIX)


_BASE: Final = 1.0
_NO_SURGE: Final = 0.5  # the old pod ends before the new one is ready
_PRIORITY: Final = 0.5
_PER_10_GIB: Final = 0.1  # reloading takes as long as the memory is large


_STARTUP_S: Final = 300.0  # of which each costs a point
_LONGEST_STARTUP_S: Final = 3600.0


def startup_s(state: DisruptionState, candidate: PlacedPod) -> float:
    """Return how long pods of a pod's owner take from their start to Ready; 0 if nothing tells.

    A pod is Ready since it was unready last, as all pods of a node are that was lost for a moment.
    """
    pods = {pod.uid: pod.info for pod in (candidate, *state.pods_of(candidate.owner_uid))}
    took = [
        (pod.ready_at - pod.started_at).total_seconds()
        for pod in pods.values()
        if pod.ready_at and pod.started_at
    ]
    took = [seconds for seconds in took if 0 <= seconds <= _LONGEST_STARTUP_S]
    return median(took) if took else 0.0


def disruption_cost(state: DisruptionState, candidate: PlacedPod, *, mib: int) -> float:
    """Return what it costs to move a pod that holds *mib* of a card, in per cent of one card."""
    pod = candidate.info
    return (
        _BASE
        + startup_s(state, candidate) / _STARTUP_S
        + (_NO_SURGE if mode_of(pod) is MoveMode.EVICT else 0.0)
        + (_PRIORITY if pod.priority > 0 else 0.0)
        + _PER_10_GIB * mib / (10 * 1024)
    )


SYSTEM_PRIORITY: Final = 2_000_000_000  # system-cluster-critical and above
# Annotations that protect a pod from other evictors protect it from us as well.
_PROTECTED_BY: Final = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
}


def why_not_evictable(
    state: DisruptionState,
    candidate: PlacedPod,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    requested: bool = False,
    plan: str = "",
) -> HoldReason | None:
    """Return the first reason that forbids moving a pod, or None if it may be moved.

    What only keeps moves few does not count where people have requested the move. What has begun of
    the same *plan* does not speak against more of it.
    """
    budgets = budgets_of(state, policy=policy, now=now)
    if requested:
        policy = replace(policy, namespaces=Namespaces.ALL)
    at_once = requested or budgets.may_undo(candidate.uid)
    min_age = timedelta(seconds=0 if at_once else policy.min_pod_age_s)
    rules = (
        *_state_rules(candidate.info, min_age, now=now),
        (_opted_out(state, candidate, policy), HoldReason.NAMESPACE),
        *_protection_rules(candidate.info),
        *_placement_rules(state, candidate),
        *_owner_rules(state, candidate),
    )
    refusal = next((reason for broken, reason in rules if broken), None)
    if requested:
        return refusal
    return refusal or budgets.of_pod(
        candidate.uid,
        owner_uid=candidate.owner_uid,
        namespace=candidate.info.record.namespace,
        plan=plan,
    )


def _opted_out(state: DisruptionState, candidate: PlacedPod, policy: RebalancerPolicy) -> bool:
    labels = state.scheduling.namespaces.get(candidate.info.record.namespace, {})
    wish = labels.get(names.REBALANCE)
    if policy.namespaces is Namespaces.LABELLED:
        return wish != ALLOWED
    return wish == Rebalance.NEVER.value


ALLOWED: Final = "allow"  # a namespace's label: its pods may be moved where not all may be
_Rules = tuple[tuple[bool, HoldReason], ...]


def _state_rules(pod: PodInfo, min_age: timedelta, *, now: datetime) -> _Rules:
    age = now - pod.started_at if pod.started_at else timedelta(0)
    return (
        (pod.record.terminating, HoldReason.TERMINATING),
        (pod.phase != "Running" or not pod.ready, HoldReason.NOT_READY),
        (age < min_age, HoldReason.TOO_YOUNG),
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
        (kind not in OWNERS, HoldReason.OWNER_KIND),
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
        (_was_resized(pod), HoldReason.RESIZED),
        (held is not None and len(held.by_card) > 1, HoldReason.SEVERAL_CARDS),
        (
            need is not None and any(container.cards > 1 for container in need.containers),
            HoldReason.SEVERAL_CARDS,
        ),
        (not state.places(pod) or not state.keeps_wiring(pod), HoldReason.OTHER_SCHEDULER),
        (bool(candidate.unjudged), HoldReason.UNJUDGED),
        (constraints.keeps_local_data and not opted_in, HoldReason.LOCAL_DATA),
    )


def _was_resized(pod: PodInfo) -> bool:
    resize = pod.record.resize
    return resize is not None and resize.counts != resize.assigned


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


# Controllers of these kinds are followed; of any other, the pods alone are known.
_FOLLOWED: Final = ("ReplicaSet", "StatefulSet")


def why_not_now(state: DisruptionState, candidate: PlacedPod, mode: MoveMode) -> HoldReason | None:
    """Return the first reason against moving a pod in a mode now, or None.

    What is not known speaks against it.
    """
    if state.workloads.unknown:
        return HoldReason.GUARDS_NOT_KNOWN
    rules = (
        *_workload_rules(state, candidate, mode),
        *_budget_rules(state, candidate, mode),
        (_lacks_quota(state, candidate.info, mode), HoldReason.QUOTA),
        (
            mode is MoveMode.SURGE and _is_served_by_hash(state, candidate.info),
            HoldReason.SERVICE_BY_HASH,
        ),
    )
    return next((reason for broken, reason in rules if broken), None)


def _workload_rules(state: DisruptionState, candidate: PlacedPod, mode: MoveMode) -> _Rules:
    kind = candidate.info.owner[0] if candidate.info.owner else ""
    found = state.workloads.controllers_of(candidate.owner_uid)
    missing = kind in _FOLLOWED and (not found or _owner_is_missing(found))
    asked = candidate.info.rebalance is Rebalance.SURGE
    # Of a Rollout the ReplicaSets alone are known: during a rollout two of them have pods.
    rollout = found[0].owner if found and found[0].owner_kind == _ROLLOUT else ""
    several = bool(rollout) and len(state.workloads.of_owner(rollout)) > 1
    return (
        (missing, HoldReason.OWNER_NOT_KNOWN),
        (several or any(workload.rolling_out for workload in found), HoldReason.ROLLOUT),
        (any(workload.paused for workload in found), HoldReason.OWNER_PAUSED),
        (
            any(workload.ready < workload.desired for workload in found),
            HoldReason.REPLICAS_NOT_READY,
        ),
        (
            mode is MoveMode.SURGE and any(workload.recreate for workload in found),
            HoldReason.RECREATE,
        ),
        (
            mode is MoveMode.SURGE and not asked and any(workload.no_surge for workload in found),
            HoldReason.NO_SURGE,
        ),
    )


def _owner_is_missing(found: tuple[Workload, ...]) -> bool:
    """Report whether an owner is named that is not known.

    Whoever it is, it may want its pods otherwise: a Rollout is known by its ReplicaSets.
    """
    return bool(found[0].owner_kind) and found[0].owner_kind != _ROLLOUT and len(found) == 1


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
        (
            pod.rebalance is not Rebalance.SURGE and any(budget.forbids for budget in budgets),
            HoldReason.BUDGET_FORBIDS,
        ),
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


def _lacks_quota(state: DisruptionState, pod: PodInfo, mode: MoveMode) -> bool:
    """Report whether a quota would refuse the replacement of a pod.

    One that was lowered below what is used does so even if the pod has left.
    """
    quotas = state.workloads.quotas.of(pod.record.namespace)
    # Adding up what a pod counts takes longer than all other rules; few namespaces have a quota.
    usage = quota_usage(pod.record.containers) if quotas else {}
    if mode is MoveMode.EVICT:
        usage = dict.fromkeys(usage, Fraction(0))  # beyond what the pod itself gives back
    return any(quota.exceeded_by(usage) for quota in quotas)


def _is_served_by_hash(state: DisruptionState, pod: PodInfo) -> bool:
    namespace = pod.record.namespace
    return any(
        not service.labels.keys().isdisjoint(HASH_LABELS) and service.selects(namespace, pod.labels)
        for service in state.workloads.services.of(namespace)
    )
