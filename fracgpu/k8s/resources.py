"""What a node has besides its cards, and what pods request of it."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.k8s.pod import Amounts, ContainerStatus, Pod, containers_of
from fracgpu.k8s.quantity import cpu_milli, parse_or_zero
from fracgpu.units import BYTES_PER_MIB

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

Requests = tuple[tuple[str, int], ...]
"""Amounts above 0 by resource: CPU in millicores, all else in its own unit, such as bytes."""

NO_REQUESTS: Final[Requests] = ()

# For these a request of the whole pod counts instead of those of its containers. Source:
# IsSupportedPodLevelResource in staging/src/k8s.io/component-helpers/resource/helpers.go.
_POD_LEVEL: Final = (CPU, MEMORY)
_HUGE_PAGES: Final = "hugepages-"

RESIZES: Final = "PodResize"
"""What the conditions of a pod that is resized begin with: PodResizePending, InProgress."""

UNBOUNDED: Final = 2**62
"""The largest amount that is distinguished from others; also stands for any amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """CPU in millicores, memory in MiB, and number of pods: of a node, or requested by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0

    def __add__(self, other: "HostResources") -> "HostResources":
        return HostResources(
            cpu_milli=self.cpu_milli + other.cpu_milli,
            memory_mib=self.memory_mib + other.memory_mib,
            pods=self.pods + other.pods,
        )

    def __sub__(self, other: "HostResources") -> "HostResources":
        return HostResources(
            cpu_milli=self.cpu_milli - other.cpu_milli,
            memory_mib=self.memory_mib - other.memory_mib,
            pods=self.pods - other.pods,
        )

    def lacks(self, wanted: "HostResources") -> bool:
        """Report whether this, which is left, is too little CPU or memory for what is *wanted*."""
        return wanted.cpu_milli > max(self.cpu_milli, 0) or wanted.memory_mib > max(
            self.memory_mib, 0
        )


NO_HOST_RESOURCES: Final = HostResources()


def amount_of(resource: str, quantity: str | int | float) -> int:
    """Return a quantity in whole units, rounded up; CPU in millicores."""
    text = str(quantity)
    units = cpu_milli(text) if resource == CPU else math.ceil(parse_or_zero(text))
    return min(units, UNBOUNDED)


def node_amounts(allocatable: Amounts) -> dict[str, int]:
    """Return what a node has of each resource, from its ``status.allocatable``."""
    return {resource: amount_of(resource, text) for resource, text in allocatable.items()}


def node_host(allocatable: Amounts) -> HostResources:
    """Return ``cpu``, ``memory`` and ``pods`` of a node's allocatable; 0 for what is missing."""
    if not allocatable:
        return NO_HOST_RESOURCES
    found = {name: amount_of(name, allocatable.get(name, 0)) for name in (CPU, MEMORY, PODS)}
    return HostResources(
        cpu_milli=found[CPU], memory_mib=found[MEMORY] // BYTES_PER_MIB, pods=found[PODS]
    )


def requests_of(pod: Pod) -> Requests:
    """Return what a pod requests, as kube-scheduler counts it.

    While a container is resized the largest of what it requests, was allocated and has counts; what
    its node can never give it does not. Source: AggregateContainerRequests in
    staging/src/k8s.io/component-helpers/resource/helpers.go.
    """
    spec, containers = pod.spec, containers_of(pod.spec)
    resize = [one for one in pod.status.conditions or () if one.type.startswith(RESIZES)]
    if resize:
        wanted = all(one.reason != "Infeasible" for one in resize)
        statuses = {one.name: one for one in pod.status.of_containers}
        containers = tuple(
            _while_resized(one, statuses[one.name], wanted=wanted) if one.name in statuses else one
            for one in containers
        )
    pod_level = spec.resources.requests if spec.resources else None
    return pod_requests(containers, overhead=spec.overhead, pod_level=pod_level)


def _while_resized(
    container: ContainerSpec, status: ContainerStatus, *, wanted: bool
) -> ContainerSpec:
    has, allocated = status.resources and status.resources.requests, status.allocated_resources
    counted: dict[str, str] = {}
    for amounts in (container.requests if wanted else None, has, allocated):
        for name, quantity in (amounts or {}).items():
            both = counted.get(name, "0"), str(quantity)
            counted[name] = max(both, key=partial(amount_of, name))
    return msgspec.structs.replace(container, requests={**container.requests, **counted})


def pod_requests(
    containers: Sequence[ContainerSpec],
    *,
    overhead: Amounts | None = None,
    pod_level: Amounts | None = None,
) -> Requests:
    """Return what a pod requests, as kube-scheduler adds it up.

    A limit stands for a missing request, as in the API server's defaults.

    Args:
        containers: of the pod.
        overhead: of the pod's RuntimeClass, on top.
        pod_level: the requests of the pod as a whole, which count instead of its containers'.
    """
    parts = defaultdict[str, list[tuple[ContainerKind, int]]](list)
    for container in containers:
        for name, text in {**container.limits, **container.requests}.items():
            parts[name].append((container.kind, amount_of(name, text)))
    # A container that wants none of a resource changes nothing of its sum.
    total = {name: pod_resource_sum(amounts) for name, amounts in parts.items()}
    total |= {
        name: amount_of(name, quantity)
        for name, quantity in (pod_level or {}).items()
        if name in _POD_LEVEL or name.startswith(_HUGE_PAGES)
    }
    for name, quantity in (overhead or {}).items():
        total[name] = total.get(name, 0) + amount_of(name, quantity)
    return _shared(tuple(sorted((name, amount) for name, amount in total.items() if amount > 0)))


@cached(entries=4096)
def _shared(requests: Requests) -> Requests:
    return requests


@cached(entries=4096)
def pod_host(requests: Requests) -> HostResources:
    """Return the CPU and memory in what a pod requests, and that it is one pod."""
    found: Mapping[str, int] = dict(requests)
    mib = -(-found.get(MEMORY, 0) // BYTES_PER_MIB)
    return HostResources(cpu_milli=found.get(CPU, 0), memory_mib=mib, pods=1)
