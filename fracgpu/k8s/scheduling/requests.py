"""What a pod requests of each resource of a node, and what a node has, in whole units."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from fracgpu.k8s.container import ContainerKind, init_container_kind, pod_resource_sum
from fracgpu.k8s.pod import Amounts, Resources
from fracgpu.k8s.quantity import cpu_milli, parse_or_zero

CPU: Final = "cpu"
PODS: Final = "pods"

Requests = tuple[tuple[str, int], ...]
"""Amounts above 0 by resource: CPU in millicores, all else in its own unit, such as bytes."""

NO_REQUESTS: Final[Requests] = ()

# For these a request of the whole pod counts instead of those of its containers. Source:
# IsSupportedPodLevelResource in staging/src/k8s.io/component-helpers/resource/helpers.go.
_POD_LEVEL: Final = ("cpu", "memory")
_HUGE_PAGES: Final = "hugepages-"

UNBOUNDED: Final = 2**62
"""The largest amount that is distinguished from others; also stands for any amount."""


def amount_of(resource: str, quantity: str | int | float) -> int:
    """Return a quantity in whole units, rounded up; CPU in millicores."""
    text = str(quantity)
    units = cpu_milli(text) if resource == CPU else math.ceil(parse_or_zero(text))
    return min(units, UNBOUNDED)


def node_amounts(allocatable: Amounts) -> dict[str, int]:
    """Return what a node has of each resource, from its ``status.allocatable``."""
    return {resource: amount_of(resource, text) for resource, text in allocatable.items()}


def pod_requests(
    *,
    init_containers: Sequence[tuple[str | None, Resources | None]],
    containers: Sequence[Resources | None],
    overhead: Amounts | None = None,
    pod_level: Resources | None = None,
) -> Requests:
    """Return what a pod requests, as kube-scheduler adds it up.

    A limit stands for a missing request, as in the API server's defaults.

    Args:
        init_containers: restartPolicy and resources of each.
        containers: resources of each app container.
        overhead: of the pod's RuntimeClass, on top.
        pod_level: the ``spec.resources`` of the pod.
    """
    parts = [
        (init_container_kind(policy), _wanted(resources)) for policy, resources in init_containers
    ]
    parts += [(ContainerKind.APP, _wanted(resources)) for resources in containers]
    names = sorted({name for _, wanted in parts for name in wanted})
    total = {
        name: pod_resource_sum([(kind, wanted.get(name, 0)) for kind, wanted in parts])
        for name in names
    }
    total |= {
        name: amount_of(name, quantity)
        for name, quantity in ((pod_level.requests if pod_level else None) or {}).items()
        if name in _POD_LEVEL or name.startswith(_HUGE_PAGES)
    }
    for name, quantity in (overhead or {}).items():
        total[name] = total.get(name, 0) + amount_of(name, quantity)
    return _shared(tuple(sorted((name, amount) for name, amount in total.items() if amount > 0)))


def _wanted(resources: Resources | None) -> dict[str, int]:
    if resources is None:
        return {}
    both = {**(resources.limits or {}), **(resources.requests or {})}
    return {name: amount_of(name, quantity) for name, quantity in both.items()}


@lru_cache(maxsize=4096)
def _shared(requests: Requests) -> Requests:
    return requests
