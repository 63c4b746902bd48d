"""Topology spread constraints that refuse nodes: kube-scheduler's plugin PodTopologySpread.

Source: pkg/scheduler/framework/plugins/podtopologyspread/filtering.go and common.go.
"""

import numpy as np

from fracgpu.k8s.scheduling.cluster import NO_VALUE, Changes, Flags, Rows, SchedulingCluster
from fracgpu.k8s.scheduling.objects import ScheduledPod
from fracgpu.k8s.scheduling.terms import PodQuery, SpreadConstraint
from fracgpu.k8s.selectors import LabelSelector


def by_spread(cluster: SchedulingCluster, pod: ScheduledPod, changes: Changes) -> Flags:
    """Return the nodes on which the pod keeps every skew within its limit."""
    allowed = cluster.all()
    constraints = pod.constraints.spread
    labelled = cluster.all()
    for constraint in constraints:
        labelled &= cluster.values(constraint.topology_key) != NO_VALUE
    for constraint in constraints:
        selector = constraint.selector_for(pod.labels)
        counts = _counts(cluster, pod, selector, changes)
        counted = labelled & _counted(cluster, pod, constraint)
        allowed &= _within(cluster, pod, constraint, selector, counts, counted)
    return allowed


def _within(
    cluster: SchedulingCluster,
    pod: ScheduledPod,
    constraint: SpreadConstraint,
    selector: LabelSelector | None,
    counts: Rows,
    counted: Flags,
) -> Flags:
    values = cluster.values(constraint.topology_key)
    size = int(values.max(initial=NO_VALUE)) + 2  # the last for NO_VALUE, which is never counted
    sums = np.bincount(values[counted], weights=counts[counted], minlength=size).astype(np.int64)
    domains = np.bincount(values[counted], minlength=size) > 0
    enough = int(np.count_nonzero(domains)) >= constraint.min_domains
    least = int(sums[domains].min()) if enough else 0
    itself = int(selector is not None and selector.matches(pod.labels))
    within: Flags = (sums[values] + itself - least <= constraint.max_skew) & (values != NO_VALUE)
    return within


def _counts(
    cluster: SchedulingCluster, pod: ScheduledPod, selector: LabelSelector | None, changes: Changes
) -> Rows:
    """Return how many pods of the namespace count on each node.

    An empty selector counts none, as in kube-scheduler's countPodsMatchSelector.
    """
    if selector is None or not selector.requirements:
        return np.zeros(cluster.size, np.int64)
    query = PodQuery(namespaces=frozenset((pod.namespace,)), selector=selector)
    return cluster.counts((query,), changes=changes, terminating=False)


def _counted(cluster: SchedulingCluster, pod: ScheduledPod, constraint: SpreadConstraint) -> Flags:
    """Return the nodes whose pods count."""
    counted = cluster.all()
    if constraint.honors_affinity:
        counted &= cluster.selected(pod.constraints.node)
    if constraint.honors_taints:
        counted &= cluster.tolerated(pod.constraints.node)
    return counted
