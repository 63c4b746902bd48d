"""Kubernetes quantities of what a node has besides cards, and what pods request of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fracgpu.k8s.container import ContainerKind, ContainerSpec, effective
from fracgpu.k8s.quantity import BYTES_PER_MIB, cpu_milli, memory_mib, parse_or_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """CPU in thousandths of a core, memory in MiB, and pods: of a node, or asked by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0


def host_of(amounts: Mapping[str, str | int | float]) -> Host:
    """Read ``cpu``, ``memory`` and ``pods`` of a node's allocatable; what is missing is 0."""
    if not amounts:
        return NO_HOST
    return Host(
        cpu_milli=cpu_milli(str(amounts.get("cpu", "0"))),
        memory_mib=int(parse_or_zero(str(amounts.get("memory", "0"))) // BYTES_PER_MIB),
        pods=int(parse_or_zero(str(amounts.get("pods", "0")))),
    )


def requested(containers: tuple[ContainerSpec, ...]) -> Host:
    """Add up what a pod's containers request, by Kubernetes' own rule; limits stand in."""
    cpu: list[tuple[ContainerKind, int]] = []
    memory: list[tuple[ContainerKind, int]] = []
    for it in containers:
        cpu.append((it.kind, cpu_milli(it.requests.get("cpu") or it.limits.get("cpu", "0"))))
        text = it.requests.get("memory") or it.limits.get("memory", "0")
        memory.append((it.kind, memory_mib(text)))
    return Host(cpu_milli=effective(cpu), memory_mib=effective(memory), pods=1)


NO_HOST: Final = Host()
