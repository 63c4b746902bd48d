"""The cluster as informers show it: cards and who holds them, all pods, and what guards them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import structlog

from component.wiring import Wiring, Wirings
from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.holders import ClaimHolders
from fracgpu.device_claims.quota import MEMORY, ClaimedMemory
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardHeat, CardUsage
from fracgpu.k8s.disruption_budget import read_budget
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.scheduling.objects import (
    ScheduledPod,
    read_namespace_labels,
    scheduled_pod_of,
)
from fracgpu.k8s.scheduling.volumes import Storage, read_claim, read_volume
from fracgpu.k8s.workloads.quota import ResourceQuota, read_quota
from fracgpu.k8s.workloads.service_selector import read_service_selector
from fracgpu.k8s.workloads.workload import read_deployment, read_replicaset, read_statefulset
from fracgpu.k8s.workloads.workload_state import ByNamespace, WorkloadState
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import BoundPod, bound_pod_of
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import Move
from fracgpu.state.node_info import ObservedNode, observe_node
from fracgpu.state.pod_info import PodInfo, pod_info_of
from fracgpu.state.snapshot import Snapshot
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import (
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PDBS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    REPLICASETS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    SERVICES,
    STATEFULSETS,
    Kind,
)

log = structlog.get_logger()

_GUARDS_WAIT_S: Final = 10.0

# What a decision needs besides pods and nodes, and how one object of each kind is read.
_GUARDS: Final[Mapping[Kind, Callable[[bytes], Any]]] = {
    NAMESPACES: read_namespace_labels,
    PDBS: read_budget,
    RESOURCE_QUOTAS: read_quota,
    SERVICES: read_service_selector,
    REPLICASETS: read_replicaset,
    DEPLOYMENTS: read_deployment,
    STATEFULSETS: read_statefulset,
    PERSISTENT_VOLUME_CLAIMS: read_claim,
    PERSISTENT_VOLUMES: read_volume,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """What is kept of a pod.

    Attributes:
        scheduled: how it counts for others; None if it has no node or has ended.
        placed: all about it; None unless it is live and holds or asks for a share of a card, or
            may do so by a claim.
        bound: what it takes of its node; None if it has none.
        has_claims: it names ResourceClaims.
    """

    scheduled: ScheduledPod | None
    placed: PlacedPod | None
    bound: BoundPod | None
    has_claims: bool = False


class ClusterCache:
    """The cluster state as of the last watch events.

    Args:
        client: lists and watches.
        wirings: how pods may get their cards.
    """

    def __init__(self, client: KubeClient, wirings: Wirings) -> None:
        self._wirings = wirings
        self._ledger = Ledger()
        self._placed_pods: dict[str, PlacedPod] = {}
        self._scheduled: dict[str, ScheduledPod] = {}
        self._bound_changes: dict[str, BoundPod | None] = {}
        self._bound_taken: set[str] = set()
        self._nodes: dict[str, ObservedNode] = {}
        self._devices: dict[str, Mapping[str, CardUuid]] = {}  # by the node
        self._scheduling: SchedulingCluster | None = None
        self._index = SnapshotIndex()
        self._claimants: dict[str, _Pod] = {}
        self._claimed = ClaimHolders(self._namespace_of)
        self._claimed_memory = ClaimedMemory()
        self._claim_informer = (
            Informer(client, RESOURCE_CLAIMS, decode=decode_claim, on_change=self._claim)
            if wirings.serves(Wiring.CLAIMS)
            else None
        )
        self._pod_informer = Informer(client, PODS, decode=_read_pod, on_change=self._pod)
        self._node_informer = Informer(client, NODES, decode=observe_node, on_change=self._node)
        self._guards: dict[Kind, Informer[Any]] = {
            kind: Informer(client, kind, decode=read, on_change=self._guard)
            for kind, read in _GUARDS.items()
        }

    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops that keep the cache current."""
        guards = {kind.plural: informer.run for kind, informer in self._guards.items()}
        claims = self._claim_informer
        return {
            "pods": self._pod_informer.run,
            "nodes": self._node_informer.run,
            **({} if claims is None else {"claims": claims.run}),
            **guards,
        }

    async def wait_synced(self) -> None:
        """Wait until pods and nodes have been listed once, and a while for what guards pods.

        A kind that cannot be listed, for want of permission or of an answer, must not keep moves
        under way from going on. No new one begins before it is known; see `workloads`.
        """
        await self._pod_informer.wait_synced()
        await self._node_informer.wait_synced()
        if self._claim_informer is not None:
            await self._claim_informer.wait_synced()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GUARDS_WAIT_S):
                for informer in self._guards.values():
                    await informer.wait_synced()
        if self.unknown:
            log.error("guards_not_known", kinds=self.unknown, effect="no pod is moved")

    @property
    def problem(self) -> str | None:
        """Why pods and nodes are not known yet, for people; None once they are."""
        claims = None if self._claim_informer is None else self._claim_informer.problem
        return self._pod_informer.problem or self._node_informer.problem or claims

    @property
    def nodes(self) -> Mapping[str, NodeCards]:
        return {name: node.cards for name, node in self._nodes.items()}

    @property
    def placed_pods(self) -> Mapping[str, PlacedPod]:
        """Live pods that hold or ask for a share of a card, by UID."""
        return MappingProxyType(dict(self._placed_pods))

    def cards(self) -> dict[CardUuid, str]:
        """Return the node's name of each card of the shared nodes."""
        return {
            card.uuid: name
            for name, node in self._nodes.items()
            if node.cards.shared
            for card in node.cards.cards
        }

    def take_bound_changes(self) -> Mapping[str, BoundPod | None]:
        """Return the bound pods by UID that changed since the last call; None for one that is gone.

        There can be only one caller.
        """
        changes, self._bound_changes = self._bound_changes, {}
        self._bound_taken |= changes.keys()
        self._bound_taken -= {uid for uid, pod in changes.items() if pod is None}
        return changes

    def snapshot(self, *, now: datetime) -> Snapshot:
        return self._ledger.snapshot(now=now)

    def disruption_state(  # noqa: PLR0913 - what the cluster does not show itself
        self,
        *,
        usage: Mapping[CardUuid, CardUsage],
        heat: Mapping[CardUuid, CardHeat],
        past: Sequence[Move],
        strategy: Strategy,
        scheduler_name: str,
        leading_since: datetime,
        now: datetime,
    ) -> DisruptionState:
        """Return the input of a plan: the cluster as it is known now, with what is known besides.

        See :class:`DisruptionState` for the arguments.
        """
        self._index.observe(self.take_bound_changes())
        return DisruptionState(
            snapshot=self.snapshot(now=now),
            usage=usage,
            heat=heat,
            pods=self.placed_pods,
            past=past,
            scheduling=self.scheduling(),
            workloads=self.workloads(),
            index=self._index,
            strategy=strategy,
            scheduler_name=scheduler_name,
            claims_in={
                name: self._get_claims(labels)
                for name, labels in self.scheduling().namespaces.items()
            },
            leading_since=leading_since,
        )

    def scheduling(self) -> SchedulingCluster:
        """Return all nodes and pods as kube-scheduler's filters see them; the same until a change.

        The copy may be read in another thread.
        """
        if self._scheduling is None:
            self._scheduling = SchedulingCluster(
                tuple(node.scheduling for node in self._nodes.values()),
                tuple(self._scheduled.values()),
                namespaces={key.name: labels for key, labels in self._items(NAMESPACES)},
                storage=Storage(
                    claims={
                        (key.namespace, key.name): claim
                        for key, claim in self._items(PERSISTENT_VOLUME_CLAIMS)
                    },
                    volumes={key.name: volume for key, volume in self._items(PERSISTENT_VOLUMES)},
                ),
            )
        return self._scheduling

    def _get_claims(self, labels: Mapping[str, str]) -> bool | None:
        """Report whether new pods of a namespace get claims; None where none is admitted."""
        try:
            return self._wirings.of(labels) is Wiring.CLAIMS
        except ValueError:
            return None

    def workloads(self) -> WorkloadState:
        """Return the owners of pods and what guards them, and the kinds that are not known yet."""
        workloads = [
            workload
            for kind in (REPLICASETS, DEPLOYMENTS, STATEFULSETS)
            for _, workload in self._items(kind)
            if workload is not None
        ]
        return WorkloadState(
            workloads={workload.uid: workload for workload in workloads},
            budgets=ByNamespace([budget for _, budget in self._items(PDBS)]),
            quotas=ByNamespace([self._with_claims(one) for _, one in self._items(RESOURCE_QUOTAS)]),
            services=ByNamespace([selector for _, selector in self._items(SERVICES)]),
            unknown=self.unknown,
        )

    def _with_claims(self, quota: ResourceQuota) -> ResourceQuota:
        """Return a quota without what claims use of it, which the API server does not count."""
        claimed_mib = self._claimed_memory.by_namespace[quota.namespace]
        left = {key: mib - claimed_mib for key, mib in quota.left.items() if key == MEMORY}
        return replace(quota, left={**quota.left, **left}) if left else quota

    @property
    def unknown(self) -> tuple[str, ...]:
        """The kinds of what guards pods that have not been listed yet, as resources."""
        return tuple(kind.plural for kind, informer in self._guards.items() if not informer.synced)

    def _items(self, kind: Kind) -> list[tuple[Any, Any]]:
        return list(self._guards[kind].items().items())

    def _bound_changed(self, uid: str, bound: BoundPod | None) -> None:
        if bound is None and uid not in self._bound_taken:
            # Nobody knows it: on a replica that waits to lead, nothing must pile up.
            self._bound_changes.pop(uid, None)
        else:
            self._bound_changes[uid] = bound

    def _pod(self, change: Change[_Pod]) -> None:
        self._scheduling = None
        uid, gone = change.uid, change.type is ChangeType.DELETED
        if self._claim_informer is not None and not gone and change.object.has_claims:
            self._claimants[uid] = change.object
        else:
            self._claimants.pop(uid, None)
        self._count(uid, change.object, gone=gone)
        for other in self._claimed.touched(uid) - {uid}:
            self._count_alone(other)

    def _count(self, uid: str, pod: _Pod, *, gone: bool = False) -> None:
        """Count a pod with what it holds, by itself or by its claims."""
        if pod.placed is not None and uid in self._claimants:
            pod = _joined(pod, self._claimed.join(pod.placed.info, self._devices_of))
        scheduled, placed = pod.scheduled, pod.placed
        if placed is not None and not placed.info.has_share:
            placed = None
        self._bound_changed(uid, None if gone else pod.bound)
        if gone or scheduled is None:
            self._scheduled.pop(uid, None)
        else:
            self._scheduled[uid] = scheduled
        if gone or placed is None:
            self._ledger.remove_pod(uid)
            self._placed_pods.pop(uid, None)
        else:
            self._ledger.set_pod(placed.info.record)
            self._placed_pods[uid] = placed
        if gone or placed is None or not placed.info.record.node:
            self._count_alone(uid)

    def _claim(self, change: Change[DeviceClaim]) -> None:
        gone = change.type is ChangeType.DELETED
        self._claimed_memory.observe(change.object, gone=gone)
        for uid in self._claimed.observe(change.object, gone=gone):
            self._count_claims_of(uid)

    def _count_claims_of(self, uid: str) -> None:
        pod = self._claimants.get(uid)
        if pod is not None:
            self._count(uid, pod)
        else:
            self._count_alone(uid)

    def _count_alone(self, uid: str) -> None:
        """Count claims whose pod is not there (any more), has no node yet, or is another's."""
        self._ledger.observe(self._claimed.allocation(uid, self._devices_of))

    def _devices_of(self, node: str) -> Mapping[str, CardUuid]:
        return self._devices.get(node, {})

    def _namespace_of(self, uid: str) -> str | None:
        pod = self._claimants.get(uid)
        placed = self._placed_pods.get(uid) if pod is None else pod.placed
        return None if placed is None else placed.info.record.namespace

    def _node(self, change: Change[ObservedNode]) -> None:
        self._scheduling = None
        name = change.key.name
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(name)
            self._nodes.pop(name, None)
            self._devices.pop(name, None)
            return
        self._ledger.set_node(change.object.cards)
        self._nodes[name] = change.object
        devices = cards_by_device(card.uuid for card in change.object.cards.cards)
        if self._devices.get(name) != devices:
            self._devices[name] = devices
            for uid in self._claimed.on_node(name):
                self._count_claims_of(uid)

    def _guard(self, _: Change[Any]) -> None:
        self._scheduling = None


def _read_pod(body: bytes) -> _Pod:
    pod = decode_pod(body)
    info, constraints = pod_info_of(pod), scheduling_constraints_of(pod)
    placed = None
    if info.record.live and (info.has_share or info.has_device_claims):
        placed = PlacedPod(info=info, scheduling_constraints=constraints)
    return _Pod(
        scheduled=scheduled_pod_of(pod, constraints),
        placed=placed,
        bound=bound_pod_of(info),
        has_claims=info.has_device_claims,
    )


def _joined(pod: _Pod, info: PodInfo) -> _Pod:
    assert pod.placed is not None, "a pod that is not live holds nothing"  # noqa: S101
    placed = replace(pod.placed, info=info)
    return replace(pod, placed=placed, bound=bound_pod_of(info))
