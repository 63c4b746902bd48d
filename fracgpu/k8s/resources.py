"""Kubernetes quantities of what a node has besides cards, and what pods request of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.k8s.quantity import BYTES_PER_MIB, cpu_milli, memory_mib, parse_or_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """CPU in thousandths of a core, memory in MiB, and pods: of a node, or asked by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0


def node_allocatable(amounts: Mapping[str, str | int | float]) -> HostResources:
    """Read ``cpu``, ``memory`` and ``pods`` of a node's allocatable; what is missing is 0."""
    if not amounts:
        return NO_HOST_RESOURCES
    return HostResources(
        cpu_milli=cpu_milli(str(amounts.get("cpu", "0"))),
        memory_mib=int(parse_or_zero(str(amounts.get("memory", "0"))) // BYTES_PER_MIB),
        pods=int(parse_or_zero(str(amounts.get("pods", "0")))),
    )


def pod_requests(containers: tuple[ContainerSpec, ...]) -> HostResources:
    """Add up what a pod's containers request, by Kubernetes' own rule; limits stand in."""
    cpu: list[tuple[ContainerKind, int]] = []
    memory: list[tuple[ContainerKind, int]] = []
    for it in containers:
        cpu.append((it.kind, cpu_milli(it.requests.get("cpu") or it.limits.get("cpu", "0"))))
        text = it.requests.get("memory") or it.limits.get("memory", "0")
        memory.append((it.kind, memory_mib(text)))
    return HostResources(
        cpu_milli=pod_resource_sum(cpu), memory_mib=pod_resource_sum(memory), pods=1
    )


NO_HOST_RESOURCES: Final = HostResources()
