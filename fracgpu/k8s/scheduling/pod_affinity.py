"""Required affinity and anti-affinity between pods: kube-scheduler's plugin InterPodAffinity.

Source: pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.
"""

import numpy as np

from fracgpu.k8s.scheduling.cluster import (
    NO_VALUE,
    Changes,
    Flags,
    SchedulingCluster,
    per_value,
)
from fracgpu.k8s.scheduling.objects import ScheduledPod
from fracgpu.k8s.scheduling.terms import PodTerm


def by_own_affinity(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes that the pod's own affinity allows.

    A pod counts if it matches every term. Where none does in the whole cluster, the first pod of a
    group that is drawn to itself may go anywhere with the labels.
    """
    allowed = near = cluster.all()
    terms = pod.constraints.affinity
    if not terms:
        return allowed
    queries = tuple(cluster.query(term) for term in terms)
    counts = cluster.counts(queries, changes=changes, terminating=True)
    none_yet = True
    for term in terms:
        values = cluster.values(term.topology_key)
        there = per_value(values, counts) > 0
        allowed = allowed & (values != NO_VALUE)
        near = near & there
        none_yet = none_yet and not there.any()
    drawn_to_itself = all(query.matches(pod.namespace, pod.labels) for query in queries)
    return allowed if none_yet and drawn_to_itself else allowed & near


def by_own_anti_affinity(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes that the pod's own anti-affinity allows."""
    allowed = cluster.all()
    for term in pod.constraints.anti_affinity:
        counts = cluster.counts((cluster.query(term),), changes=changes, terminating=True)
        allowed &= per_value(cluster.values(term.topology_key), counts) == 0
    return allowed


def by_others_anti_affinity(
    cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes
) -> Flags:
    """Return the nodes from which no other pod's anti-affinity keeps the pod."""
    allowed = cluster.all()
    guards = cluster.guards()
    moved = [change for change in changes if change.pod.constraints.anti_affinity]
    new = {term for change in moved for term in change.pod.constraints.anti_affinity}
    for term in (*guards, *(term for term in new if term not in guards)):
        if not cluster.query(term).matches(pod.namespace, pod.labels):
            continue
        counts = guards[term] if term in guards else np.zeros(cluster.size, np.int64)
        if moved:
            counts = counts.copy()
        for change in moved:
            counts[cluster.rows[change.pod.node]] += change.sign * _times(term, change.pod)
        allowed &= per_value(cluster.values(term.topology_key), counts) == 0
    return allowed


def _times(term: PodTerm, pod: ScheduledPod) -> int:
    return sum(1 for own in pod.constraints.anti_affinity if own == term)
