"""The cluster at one moment, as decisions see it: snapshot, pods and constraints of nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from fracgpu import names
from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.k8s.node import Taint
from fracgpu.k8s.resources import PODS, UNBOUNDED
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.constraints import RESOURCE_CLAIMS, SchedulingConstraints
from fracgpu.k8s.scheduling.objects import ScheduledPod, SchedulingNode, shared_labels
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.k8s.workloads.workload_state import WorkloadState
from fracgpu.request.need import Strategy
from fracgpu.state.card_hold import CardHold
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import Reservation
from fracgpu.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A pod on a card, and where else it may go."""

    info: PodInfo
    scheduling_constraints: SchedulingConstraints

    @property
    def uid(self) -> str:
        return self.info.record.uid

    @property
    def scheduled(self) -> ScheduledPod:
        """The pod as the filters of kube-scheduler see it."""
        record = self.info.record
        return ScheduledPod(
            uid=record.uid,
            namespace=record.namespace,
            node=record.node,
            labels=shared_labels(self.info.labels),
            terminating=record.terminating,
            constraints=self.scheduling_constraints,
        )

    @property
    def unjudged(self) -> tuple[str, ...]:
        """What may refuse a node and is not simulated."""
        return _unjudged(self.info, self.scheduling_constraints)

    @property
    def owner_uid(self) -> str:
        return self.info.owner[2] if self.info.owner else ""


def _unjudged(info: PodInfo, constraints: SchedulingConstraints) -> tuple[str, ...]:
    """Return what is not simulated of a pod; a claim of ours is for cards, which are."""
    if info.has_other_claims:
        return constraints.unjudged
    return tuple(name for name in constraints.unjudged if name != RESOURCE_CLAIMS)


def scheduling_by_cards(
    nodes: Iterable[NodeCards],
    pods: Iterable[PlacedPod],
    taints: Mapping[str, tuple[Taint, ...]] = MappingProxyType({}),
) -> SchedulingCluster:
    """Return the cluster for kube-scheduler's filters where all that is known is its cards.

    A node then has room for any request besides cards.
    """
    placed = [pod.scheduled for pod in pods]
    wanted = {name for pod in placed for name, _ in pod.constraints.requests}
    room = dict.fromkeys((*wanted, PODS), UNBOUNDED)
    return SchedulingCluster(
        (
            SchedulingNode(
                name=node.node,
                labels=node.labels,
                taints=taints.get(node.node, ()),
                allocatable=room,
            )
            for node in nodes
        ),
        placed,
    )


def settled_workloads(pods: Iterable[PlacedPod]) -> WorkloadState:
    """Return a state where all that is known of controllers is that they have these pods.

    Each has as many as it wants; an unready pod is the one that it waits for.
    """
    found: dict[str, list[PlacedPod]] = {}
    for pod in pods:
        if pod.owner_uid:
            found.setdefault(pod.owner_uid, []).append(pod)
    return WorkloadState(
        workloads={
            uid: Workload(
                uid=uid,
                kind=members[0].info.owner[0] if members[0].info.owner else "",
                namespace=members[0].info.record.namespace,
                name=members[0].info.owner[1] if members[0].info.owner else "",
                desired=len(members),
                ready=sum(member.info.ready for member in members),
                current=len(members),
                total=len(members),
            )
            for uid, members in found.items()
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPod:
    """The pod to explain.

    Attributes:
        scheduling_constraints: which nodes kube-scheduler lets it go to.
        gates: names of its scheduling gates; kube-scheduler ignores the pod while there is one.
        unschedulable_message: why kube-scheduler last found no node for it; empty if it did not.
    """

    info: PodInfo
    scheduling_constraints: SchedulingConstraints
    gates: tuple[str, ...] = ()
    unschedulable_message: str = ""

    @property
    def unjudged(self) -> tuple[str, ...]:
        """What may refuse a node and is not simulated."""
        return _unjudged(self.info, self.scheduling_constraints)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstraints:
    """What keeps pods off a node besides its cards.

    Attributes:
        cordoned: the node is marked unschedulable (``spec.unschedulable``).
        short: what the pod lacks there besides cards, such as ``Insufficient cpu``.
        refused_by: what other pods or volumes have against the pod, as kube-scheduler judges it.
    """

    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    short: tuple[str, ...] = ()
    refused_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster at one moment.

    Attributes:
        pods: by UID; at least all those that hold a card.
        node_constraints: by node name; a node that is missing has none.
        schedulers: the schedulerNames whose kube-scheduler calls our extender.
        strategy: the cluster's default; a pod may name its own.
        chosen: by node, the cards that the extender would take for the explained pod.
        preferred_node: the one that it would give the highest score; empty if there is none.
        notes: what could not be determined.
        unbound: claims of the explained pod that need a volume before a node is chosen for it.
        cards_only: taints, CPU, host memory and volumes are not known, so no node is known to fit.
        reservations: what Moves hold, by the name of the Move; consumed and lapsed ones included.
        holds: what Moves keep for waiting pods, by the name of the Move; lapsed ones included.
        denied: the cards that Moves keep the explained pod off; the snapshot has them cordoned.
    """

    snapshot: Snapshot
    strategy: Strategy
    chosen: Mapping[str, frozenset[CardUuid]] = field(default_factory=dict)
    preferred_node: str = ""
    notes: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    cards_only: bool = False
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    holds: Mapping[str, CardHold] = field(default_factory=dict)
    denied: frozenset[CardUuid] = frozenset()
    pods: Mapping[str, PodInfo]
    node_constraints: Mapping[str, NodeConstraints] = field(default_factory=dict)
    schedulers: frozenset[str] = frozenset({names.SCHEDULER_NAME})
    now: datetime
