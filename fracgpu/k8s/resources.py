"""CPU, host memory and pods: what a node has besides its cards, and what pods request."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.k8s.pod import Amounts
from fracgpu.k8s.quantity import cpu_milli, memory_mib, parse_or_zero
from fracgpu.units import BYTES_PER_MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """CPU in millicores, memory in MiB, and number of pods: of a node, or requested by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0

    def lacks(self, wanted: "HostResources") -> bool:
        """Report whether this, which is left, is too little CPU or memory for what is *wanted*."""
        return wanted.cpu_milli > max(self.cpu_milli, 0) or wanted.memory_mib > max(
            self.memory_mib, 0
        )


def node_allocatable(amounts: Mapping[str, str | int | float]) -> HostResources:
    """Return ``cpu``, ``memory`` and ``pods`` of a node's allocatable; 0 for what is missing."""
    if not amounts:
        return NO_HOST_RESOURCES
    return HostResources(
        cpu_milli=cpu_milli(str(amounts.get("cpu", "0"))),
        memory_mib=int(parse_or_zero(str(amounts.get("memory", "0"))) // BYTES_PER_MIB),
        pods=int(parse_or_zero(str(amounts.get("pods", "0")))),
    )


def pod_requests(
    containers: tuple[ContainerSpec, ...],
    *,
    overhead: Amounts | None = None,
    pod_level: Amounts | None = None,
) -> HostResources:
    """Return what a pod requests, by Kubernetes' rule; a limit stands for a missing request.

    Args:
        containers: of the pod.
        overhead: of the pod's RuntimeClass, on top.
        pod_level: the requests of the pod as a whole, which count instead of its containers'.
    """
    if len(containers) == 1 and not (overhead or pod_level):  # most pods: nothing to add up
        (only,) = containers
        return _requested(_amount(only, "cpu"), _amount(only, "memory"))
    cpu: list[tuple[ContainerKind, int]] = []
    memory: list[tuple[ContainerKind, int]] = []
    for container in containers:
        cpu.append((container.kind, cpu_milli(_amount(container, "cpu"))))
        memory.append((container.kind, memory_mib(_amount(container, "memory"))))
    whole, above = pod_level or {}, overhead or {}
    own_cpu = cpu_milli(str(whole["cpu"])) if "cpu" in whole else pod_resource_sum(cpu)
    own_mib = memory_mib(str(whole["memory"])) if "memory" in whole else pod_resource_sum(memory)
    return HostResources(
        cpu_milli=own_cpu + cpu_milli(str(above.get("cpu", "0"))),
        memory_mib=own_mib + memory_mib(str(above.get("memory", "0"))),
        pods=1,
    )


def _amount(container: ContainerSpec, resource: str) -> str:
    return container.requests.get(resource) or container.limits.get(resource, "0")


@lru_cache(maxsize=4096)
def _requested(cpu: str, memory: str) -> HostResources:
    return HostResources(cpu_milli=cpu_milli(cpu), memory_mib=memory_mib(memory), pods=1)


NO_HOST_RESOURCES: Final = HostResources()
