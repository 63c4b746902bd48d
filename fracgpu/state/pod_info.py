"""A pod object decoded: what it requests and holds, and what scheduling and moving it need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fracgpu import names
from fracgpu.errors import UNREADABLE, RequestError, WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.node_affinity import Toleration, read_tolerations
from fracgpu.k8s.pod import (
    Pod,
    PodCondition,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    containers_of,
    decode_pod,
)
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources, pod_host, requests_of
from fracgpu.k8s.scheduling.preferences import has_preferences
from fracgpu.request.grant import need_from_limits
from fracgpu.request.grant_note import (
    as_granted,
    class_named_in,
    granted_amounts,
    with_granted_limits,
)
from fracgpu.request.language import parse_gang, parse_request
from fracgpu.request.need import Gang, PodNeed, Rebalance
from fracgpu.state.allocation import Assignment, PodRecord, Resize, read_assignment
from fracgpu.state.claim_use import ClaimUse, claim_uses
from fracgpu.state.resize import read_resize

_Pairs = tuple[tuple[str, str], ...]
_Container = tuple[str, ContainerKind, _Pairs, _Pairs]
_Need = tuple[PodNeed | None, str, Rebalance | None]

# The replicas of a controller request the same, and each is decoded at several events. Requests of
# more characters, which are rare, are parsed each time.
_MOST_KNOWN, _MOST_CHARS = 1024, 2_000
_known_needs: Final[dict[tuple[_Pairs, tuple[_Container, ...]], _Need]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """A pod: its record, its need, and what scheduling and rebalancing look at.

    Attributes:
        need: what it requests of cards; None if it requests nothing, or if the request cannot be
            read (*need_problem* then says why).
        host: what it requests of the node besides cards.
        started_at: when kubelet acknowledged it; None before.
        ends_by: when its grace period is over; None unless it is terminating.
        ready: its Ready condition is True.
        ready_at: since when.
        owner: (kind, name, uid) of the controlling owner, or None for a bare pod.
        container_ids: container → the runtime's id, without the ``containerd://`` prefix.
        reason: why the pod is in its phase (``status.reason``); empty if kubelet gives none.
        unschedulable_since: since when kube-scheduler has found no node for it; None if it has not
            tried (the pod is gated), or found one. The API server keeps the time while the
            condition stays False, so a pod that was gated first has waited less than it says.
        unschedulable_why: what kube-scheduler says of the nodes then.
        nominated_node: where kube-scheduler makes room for it by preemption, or waits for what the
            pod needs before it is bound; usually empty.
        has_preferences: it prefers some nodes, by soft affinity or soft spreading.
        tolerations: which taints it tolerates; none if they cannot be read.
        has_claims: for volumes or devices, which kube-scheduler may have to bind before the pod.
        has_device_claims: it names ResourceClaims, of whatever driver.
        claim_uses: those by name, with the request of each that its containers have.
        has_other_claims: some of them are none that FracGPU makes.
        device_claim: the ResourceClaim of ours that it names; empty without one.
        gated: a scheduling gate keeps kube-scheduler from trying it.
        pod_group: the PodGroup (``scheduling.k8s.io``) that it belongs to; empty without one.
        gang: the pods with which it is to be placed at once; None if there are none.
        preempts: pods of lower priority may be evicted for it (``preemptionPolicy``).
    """

    record: PodRecord
    need: PodNeed | None = None
    need_problem: str = ""
    host: HostResources = NO_HOST_RESOURCES
    phase: str = ""
    ready: bool = False
    ready_at: datetime | None = None
    started_at: datetime | None = None
    ends_by: datetime | None = None
    priority: int = 0
    rebalance: Rebalance | None = None
    owner: tuple[str, str, str] | None = None
    scheduler_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    container_ids: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    created_at: datetime | None = None
    unschedulable_since: datetime | None = None
    unschedulable_why: str = ""
    nominated_node: str = ""
    has_preferences: bool = False
    tolerations: tuple[Toleration, ...] = ()
    has_claims: bool = False
    has_device_claims: bool = False
    claim_uses: Mapping[str, ClaimUse] = field(default_factory=dict)
    has_other_claims: bool = False
    device_claim: str = ""
    gated: bool = False
    pod_group: str = ""
    gang: Gang | None = None
    preempts: bool = True

    @property
    def card_class(self) -> str:
        """The class of the pool catalogue that it was granted; empty without one."""
        return class_named_in(self.annotations.get(names.GRANTED, ""))

    @property
    def claim_key(self) -> str:
        """``namespace/name`` of the ResourceClaim of ours that it names; empty without one."""
        return f"{self.record.namespace}/{self.device_claim}" if self.device_claim else ""

    @property
    def pending(self) -> bool:
        """Whether it has no node and may still get one."""
        return self.record.live and not self.record.node and not self.record.terminating

    @property
    def has_share(self) -> bool:
        """Whether it requests or holds a share of a card, by other means than claims of its own."""
        record = self.record
        holds = record.assignment or record.problem
        return bool(self.need is not None or self.need_problem or holds)

    @property
    def in_gang(self) -> bool:
        """Whether it is placed with other pods."""
        return self.gang is not None or bool(self.pod_group)


def decode_pod_info(body: bytes) -> PodInfo:
    """Return the pod that *body* holds.

    Raises:
        WireError: *body* is not a pod.
    """
    return pod_info_of(decode_pod(body))


def pod_info_of(pod: Pod) -> PodInfo:
    """Return what a pod requests and holds, and what scheduling and moving it need.

    Annotations that cannot be read are reported in *problem* or *need_problem*, not raised: any
    user may write them.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    annotations = meta.annotations or {}
    containers, claim = containers_of(spec), _device_claim_of(spec)
    granted = granted_amounts(annotations.get(names.GRANTED, "")) if claim else {}
    if claim:
        # The webhook has put the claim in the place of the limits, and the grant still says them.
        containers = with_granted_limits(containers, granted)
    assignment, resize, problem = _assignment_of(annotations)
    need, need_problem, rebalance = _need_of(annotations, containers)
    ready = next(
        (each for each in status.conditions or () if (each.type, each.status) == ("Ready", "True")),
        None,
    )
    refused = _unschedulable(status.conditions or ())
    owner = next((owner for owner in meta.owner_references or () if owner.controller), None)
    return PodInfo(
        record=PodRecord(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node=spec.node_name,
            live=pod.live,
            terminating=meta.deletion_timestamp is not None,
            resource_version=meta.resource_version,
            containers=containers,
            assignment=assignment,
            problem=problem,
            move=annotations.get(names.MOVE, ""),
            resize=resize,
            resized=names.RESIZED in annotations,
        ),
        need=as_granted(need, granted) if need and claim else need,
        need_problem=need_problem,
        host=pod_host(requests_of(pod)),
        phase=status.phase,
        ready=ready is not None,
        ready_at=ready.last_transition_time if ready else None,
        started_at=status.start_time,
        ends_by=meta.deletion_timestamp,
        priority=spec.priority or 0,
        rebalance=rebalance,
        owner=(owner.kind, owner.name, owner.uid) if owner else None,
        scheduler_name=spec.scheduler_name,
        labels=meta.labels or {},
        annotations=annotations,
        node_selector=spec.node_selector or {},
        container_ids=_container_ids(status),
        reason=status.reason,
        created_at=meta.creation_timestamp,
        unschedulable_since=refused.last_transition_time if refused else None,
        unschedulable_why=refused.message if refused else "",
        nominated_node=status.nominated_node_name,
        has_preferences=has_preferences(spec),
        tolerations=_tolerations(spec),
        has_claims=bool(spec.resource_claims)
        or any(volume.persistent_volume_claim or volume.ephemeral for volume in spec.volumes or ()),
        has_device_claims=bool(spec.resource_claims),
        claim_uses=claim_uses(pod) if spec.resource_claims else {},
        has_other_claims=not all(map(_is_ours, spec.resource_claims or ())),
        device_claim=claim,
        gated=bool(spec.scheduling_gates),
        pod_group=(spec.scheduling_group and spec.scheduling_group.pod_group_name) or "",
        gang=_gang_of(annotations),
        preempts=spec.preemption_policy != "Never",
    )


def _device_claim_of(spec: PodSpec) -> str:
    """Return the name of the ResourceClaim of ours that a pod names; empty without one."""
    ours = (claim.resource_claim_name for claim in spec.resource_claims or () if _is_ours(claim))
    return next(ours, None) or ""


def _is_ours(claim: PodResourceClaim) -> bool:
    """Report whether FracGPU makes a claim, for the pod that names it alone."""
    named = claim.resource_claim_name or ""
    return claim.name == names.POD_CLAIM and names.is_made_for_a_pod(named)


def _unschedulable(conditions: Sequence[PodCondition]) -> PodCondition | None:
    # Sources: PodReasonUnschedulable and PodReasonSchedulingGated in core/v1's types.go.
    return next(
        (
            condition
            for condition in conditions
            if condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
        ),
        None,
    )


def _tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    try:
        return read_tolerations(bytes(spec.tolerations))
    except UNREADABLE:
        return ()


def _gang_of(annotations: Mapping[str, str]) -> Gang | None:
    try:
        return parse_gang(annotations)
    except RequestError:  # which the pod's need says as well
        return None


def _assignment_of(
    annotations: Mapping[str, str],
) -> tuple[Assignment | None, Resize | None, str]:
    text, resized = annotations.get(names.ASSIGNMENT), annotations.get(names.RESIZED)
    if text is None:
        return None, None, ""
    try:
        assigned = read_assignment(text)
        if resized is None:
            return assigned, None, ""
        resize = read_resize(assigned, resized=resized, applied=annotations.get(names.APPLIED))
    except WireError as error:
        return None, None, str(error)
    return resize.counts, resize, ""


def _need_of(annotations: Mapping[str, str], containers: Sequence[ContainerSpec]) -> _Need:
    ours = _ours(annotations)
    described = tuple(
        (spec.name, spec.kind, _ours(spec.limits), _ours(spec.requests)) for spec in containers
    )
    asked = ours, described
    found = _known_needs.get(asked)
    if found is None:
        found = _read_need(ours, described)
        pairs = [ours, *(part for one in described for part in one[2:])]
        chars = sum(len(one[0]) for one in described)
        chars += sum(len(key) + len(text) for part in pairs for key, text in part)
        if chars <= _MOST_CHARS:
            if len(_known_needs) >= _MOST_KNOWN:
                del _known_needs[next(iter(_known_needs))]  # the oldest
            _known_needs[asked] = found
    return found


def _ours(amounts: Mapping[str, str]) -> _Pairs:
    """Return what a need is read from: our keys, of what the system writes only the class."""
    return tuple(
        (key, _kept(key, text) if key in names.RESERVED_KEYS else text)
        for key, text in amounts.items()
        if key.startswith(names.PREFIX)
    )


def _kept(key: str, text: str) -> str:
    return class_named_in(text) if key == names.GRANTED else ""


def _read_need(annotations: _Pairs, containers: tuple[_Container, ...]) -> _Need:
    specs = [
        ContainerSpec(name=name, kind=kind, limits=dict(limits), requests=dict(requests))
        for name, kind, limits, requests in containers
    ]
    try:
        request = parse_request(dict(annotations), specs)
        if request is None:
            return None, "", None
        by_name = bool(dict(annotations).get(names.GRANTED))
        return need_from_limits(request, by_name=by_name), "", request.rebalance
    except RequestError as error:
        return None, str(error), None


def _container_ids(status: PodStatus) -> dict[str, str]:
    return {
        container.name: container.container_id.rpartition("/")[2]
        for container in status.of_containers
        if container.container_id
    }
