"""Which nodes would take a pod, by each filter of kube-scheduler, and which filter refuses them.

Not simulated: limits on attached volumes, claims of dynamic resources, nominated pods, and filters
that an administrator added.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import numpy as np

from fracgpu.k8s.node import Taint
from fracgpu.k8s.resources import PODS
from fracgpu.k8s.scheduling.cluster import Changes, Flags, SchedulingCluster
from fracgpu.k8s.scheduling.objects import ScheduledPod
from fracgpu.k8s.scheduling.pod_affinity import (
    by_others_anti_affinity,
    by_own_affinity,
    by_own_anti_affinity,
)
from fracgpu.k8s.scheduling.topology_spread import by_spread
from fracgpu.k8s.scheduling.volumes import STABLE_NAME, ZONE_LABELS, Volume

CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable")


class NodeFilter(Enum):
    """Why a node is refused."""

    NODE_AFFINITY = "node selector or affinity"
    TAINTS = "taints"
    CORDONED = "cordoned"
    RESOURCES = "CPU, memory or another resource"
    PORTS = "host ports"
    AFFINITY = "pod affinity"
    ANTI_AFFINITY = "pod anti-affinity"
    OTHERS_ANTI_AFFINITY = "anti-affinity of another pod"
    SPREAD = "topology spread"
    VOLUMES = "volumes"
    ATTACHMENT = "a volume that only one node can attach"


_Rule = Callable[[SchedulingCluster, ScheduledPod, Changes], Flags]


def allowed_nodes(
    cluster: SchedulingCluster,
    pod: ScheduledPod,
    *,
    changes: Changes = (),
    without: frozenset[NodeFilter] = frozenset(),
) -> Flags:
    """Return the nodes that would take a pod as if it had no node yet.

    Args:
        cluster: the nodes, and the pods on them.
        pod: the pod; its node is ignored.
        changes: pods to count, or not to count, in addition.
        without: filters to leave out.
    """
    allowed = cluster.all()
    for rule, found in _RULES.items():
        if rule not in without:
            allowed &= found(cluster, pod, changes)
    return allowed


def refusals(
    cluster: SchedulingCluster, pod: ScheduledPod, *, changes: Changes = ()
) -> Mapping[NodeFilter, int]:
    """Return how many nodes each filter refuses, counting a node for each that refuses it."""
    refused = {
        rule: cluster.size - int(np.count_nonzero(found(cluster, pod, changes)))
        for rule, found in _RULES.items()
    }
    return {rule: count for rule, count in refused.items() if count}


def refusals_by_node(
    cluster: SchedulingCluster, pod: ScheduledPod, *, rules: frozenset[NodeFilter]
) -> Mapping[str, tuple[NodeFilter, ...]]:
    """Return which of these filters refuse each node, by its name; nodes that none refuses not."""
    found: dict[str, tuple[NodeFilter, ...]] = {}
    for rule in (rule for rule in _RULES if rule in rules):
        for row in np.flatnonzero(~_RULES[rule](cluster, pod, ())).tolist():
            name = cluster.nodes[row].name
            found[name] = (*found.get(name, ()), rule)
    return found


def _by_node_affinity(cluster: SchedulingCluster, pod: ScheduledPod, _: Changes) -> Flags:
    return cluster.selected(pod.constraints.node)


def _by_taints(cluster: SchedulingCluster, pod: ScheduledPod, _: Changes) -> Flags:
    return cluster.tolerated(pod.constraints.node)


def _by_cordons(cluster: SchedulingCluster, pod: ScheduledPod, _: Changes) -> Flags:
    if pod.constraints.node.tolerates((CORDONED,)):
        return cluster.all()
    return cluster.schedulable()


def _by_resources(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes with room. Source: fitsRequest in plugins/noderesources/fit.go."""
    fits = cluster.free(PODS) >= 1
    wanted = pod.constraints.requests
    for resource, amount in wanted:
        fits &= cluster.free(resource) >= amount
    for row in {cluster.rows[change.pod.node] for change in changes}:
        here = [change for change in changes if cluster.rows[change.pod.node] == row]
        pods = sum(change.sign for change in here)
        fits[row] = cluster.free(PODS)[row] - pods >= 1 and all(
            cluster.free(resource)[row]
            - sum(change.sign * dict(change.pod.constraints.requests).get(resource, 0)
                  for change in here)
            >= amount
            for resource, amount in wanted
        )  # fmt: skip
    return fits


def _by_ports(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    fits = cluster.all()
    if not pod.constraints.ports:
        return fits
    moved = {cluster.rows[change.pod.node] for change in changes if change.pod.constraints.ports}
    for row in {*cluster.rows_with_ports(), *moved}:
        taken = list(cluster.ports(row))
        for change in changes:
            if cluster.rows[change.pod.node] == row:
                for port in change.pod.constraints.ports:
                    taken.append(port) if change.sign > 0 else taken.remove(port)
        fits[row] = not any(port.conflicts(other) for port in pod.constraints.ports
                            for other in taken)  # fmt: skip
    return fits


def _by_volumes(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes that can reach every volume.

    A claim that is not bound, or is being deleted, allows none.

    Source: plugins/volumebinding, volumezone and volumerestrictions.
    """
    allowed = cluster.all()
    for name in pod.constraints.claims:
        claim = cluster.storage.claims.get((pod.namespace, name))
        volume = cluster.storage.volumes.get(claim.volume) if claim else None
        if claim is None or claim.terminating or volume is None:
            return np.zeros(cluster.size, np.bool_)
        if claim.one_pod and _users(cluster, pod.namespace, name, changes):
            return np.zeros(cluster.size, np.bool_)
        if volume.terms is not None:
            allowed &= cluster.any_term(volume.terms)
        if volume.zones:
            allowed &= _by_zones(cluster, volume)
    return allowed


def _by_zones(cluster: SchedulingCluster, volume: Volume) -> Flags:
    def reaches(labels: Mapping[str, str]) -> bool:
        if not any(key in labels for key in ZONE_LABELS):
            return True
        return all(
            labels.get(key, labels.get(STABLE_NAME.get(key, key))) in zones
            for key, zones in volume.zones.items()
        )

    return np.fromiter((reaches(node.labels) for node in cluster.nodes), np.bool_, cluster.size)


def _by_attachment(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes where every volume of one node is attached already, if it is anywhere."""
    allowed = cluster.all()
    for name in pod.constraints.claims:
        claim = cluster.storage.claims.get((pod.namespace, name))
        users = _users(cluster, pod.namespace, name, changes)
        if claim is None or not claim.one_node or not users:
            continue
        here = np.zeros(cluster.size, np.bool_)
        nodes = {user.node for user in users}
        if len(nodes) == 1:
            here[cluster.rows[nodes.pop()]] = True
        allowed &= here
    return allowed


def _users(
    cluster: SchedulingCluster, namespace: str, claim: str, changes: Changes
) -> list[ScheduledPod]:
    gone = {change.pod.uid for change in changes if change.sign < 0}
    new = [
        change.pod
        for change in changes
        if change.sign > 0
        and change.pod.namespace == namespace
        and claim in change.pod.constraints.claims
    ]
    return [user for user in cluster.users(namespace, claim) if user.uid not in gone] + new


_RULES: Final[Mapping[NodeFilter, _Rule]] = {
    NodeFilter.NODE_AFFINITY: _by_node_affinity,
    NodeFilter.TAINTS: _by_taints,
    NodeFilter.CORDONED: _by_cordons,
    NodeFilter.RESOURCES: _by_resources,
    NodeFilter.PORTS: _by_ports,
    NodeFilter.AFFINITY: by_own_affinity,
    NodeFilter.ANTI_AFFINITY: by_own_anti_affinity,
    NodeFilter.OTHERS_ANTI_AFFINITY: by_others_anti_affinity,
    NodeFilter.SPREAD: by_spread,
    NodeFilter.VOLUMES: _by_volumes,
    NodeFilter.ATTACHMENT: _by_attachment,
}
