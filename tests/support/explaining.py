"""A small cluster for the tests of explanations: nodes, who holds what, and the pod in question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules, Toleration
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment, CardAllocation, PodRecord
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import PodAllocation, Snapshot, build_node_info
from tests.support.core import an_allocation

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass(slots=True)
class Cluster:
    """Nodes and pods, added one by one."""

    nodes: list[NodeCards] = field(default_factory=list)
    allocations: list[PodAllocation] = field(default_factory=list)
    pods: dict[str, PodInfo] = field(default_factory=dict)
    sites: dict[str, NodeConstraints] = field(default_factory=dict)

    def node(  # noqa: PLR0913 - what tests vary of a node
        self,
        name: str,
        *cards: Card,
        cordons: Mapping[str, int] | None = None,
        effect: CordonEffect = CordonEffect.NO_SCHEDULE,
        site: NodeConstraints | None = None,
        labels: Mapping[str, str] | None = None,
        shared: bool = True,
        schedulable: bool = True,
    ) -> "Cluster":
        """Add a node; *cordons* maps a card to the seconds from noon when its cordon lapses."""
        self.nodes.append(
            NodeCards(
                node=name,
                cards=cards,
                cordons=tuple(
                    Cordon(
                        card=CardUuid(card),
                        until=NOON + timedelta(seconds=after_s),
                        reason="hot" if effect is CordonEffect.NO_SCHEDULE else "warm",
                        effect=effect,
                    )
                    for card, after_s in (cordons or {}).items()
                ),
                labels={names.SHARE_LABEL: "true", **(labels or {})},
                shared=shared,
                schedulable=schedulable,
            )
        )
        if site is not None:
            self.sites[name] = site
        return self

    def holder(  # noqa: PLR0913 - what tests vary of a pod
        self,
        name: str,
        node: str,
        card: str,
        mib: int,
        *,
        cores: int = 0,
        borrow_mib: int = 0,
        leaving: bool = False,
    ) -> "Cluster":
        """Add a pod that holds a part of a card."""
        allocation: CardAllocation = an_allocation(mib, cores=cores, borrow_mib=borrow_mib)
        self.allocations.append(
            PodAllocation(pod_uid=name, node=node, by_card={CardUuid(card): allocation})
        )
        record = PodRecord(uid=name, namespace="default", name=name, node=node, terminating=leaving)
        self.pods[name] = PodInfo(record=record)
        return self

    def state(self) -> ClusterState:
        """Return the cluster's state at noon."""
        nodes = {
            node.node: build_node_info(
                node,
                [pod for pod in self.allocations if pod.node == node.node],
                cordons=node.effects(now=NOON),
                heat=node.known_heat(now=NOON),
            )
            for node in self.nodes
        }
        return ClusterState(
            snapshot=Snapshot(nodes=nodes, pods={pod.pod_uid: pod for pod in self.allocations}),
            pods=self.pods,
            node_constraints=self.sites,
            strategy=Strategy.PACK,
            now=NOON,
        )


def a_waiting_pod(
    need: PodNeed | None,
    *,
    annotations: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    tolerates: Sequence[str] = (),
) -> ExplainedPod:
    """Return a pod as the webhook leaves it, unbound; *tolerates* are keys of taints."""
    wanted = selector or {}

    rules = NodeRules(
        selector=tuple(
            NodeExpression(key=key, operator="In", values=(value,)) for key, value in wanted.items()
        ),
        tolerations=tuple(Toleration(key=key, operator="Exists") for key in tolerates),
    )
    specs = tuple(
        ContainerSpec(name=container.name, kind=container.kind)
        for container in (need.containers if need else ())
    )
    info = PodInfo(
        record=PodRecord(uid="new", namespace="default", name="new", containers=specs),
        need=need,
        phase="Pending",
        scheduler_name=names.SCHEDULER_NAME,
        annotations={names.GRANTED: "granted", **(annotations or {})},
        node_selector=wanted,
    )
    return ExplainedPod(info=info, scheduling_constraints=SchedulingConstraints(node=rules))


def bound(subject: ExplainedPod, node: str, assignment: Assignment | None) -> ExplainedPod:
    """Return the same pod once it is bound, running since noon."""
    containers = tuple(ContainerSpec(name=name) for name in assignment or {})
    record = replace(subject.info.record, node=node, assignment=assignment, containers=containers)
    info = replace(subject.info, record=record, started_at=NOON, phase="Running")
    return replace(subject, info=info)
