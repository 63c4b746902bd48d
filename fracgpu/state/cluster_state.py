"""The cluster at one moment, as decisions see it: snapshot, pods and constraints of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.k8s.node_affinity import Taint
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.request.need import Strategy
from fracgpu.state.pod_info import PodInfo
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
    def owner_uid(self) -> str:
        return self.info.owner[2] if self.info.owner else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPod:
    """The pod to explain.

    Attributes:
        scheduling_constraints: which nodes kube-scheduler lets it go to.
        gates: names of its scheduling gates; kube-scheduler ignores the pod while there is one.
    """

    info: PodInfo
    scheduling_constraints: SchedulingConstraints
    gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstraints:
    """What keeps pods off a node besides its cards.

    Attributes:
        cordoned: the node is marked unschedulable (``spec.unschedulable``).
        short: what the pod lacks there besides cards, such as ``Insufficient cpu``.
    """

    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    short: tuple[str, ...] = ()


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
    """

    snapshot: Snapshot
    strategy: Strategy
    chosen: Mapping[str, frozenset[CardUuid]] = field(default_factory=dict)
    preferred_node: str = ""
    notes: tuple[str, ...] = ()
    pods: Mapping[str, PodInfo]
    node_constraints: Mapping[str, NodeConstraints] = field(default_factory=dict)
    schedulers: frozenset[str] = frozenset({names.SCHEDULER_NAME})
    now: datetime
