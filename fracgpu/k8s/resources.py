"""Kubernetes quantities of what a node has besides cards, and what pods request of it."""

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

from fracgpu.cards.card import NO_HOST, Host
from fracgpu.k8s.container import ContainerKind, ContainerSpec, effective

_SUFFIXES: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    **{suffix: Decimal(1000) ** (place + 2) for place, suffix in enumerate("MGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (place + 1) for place, suffix in enumerate("KMGTPE")},
}
_BYTES_PER_MIB: Final = 1024 * 1024
_MOST: Final = Decimal(2) ** 63


def host_of(amounts: Mapping[str, str | int | float]) -> Host:
    """Read ``cpu``, ``memory`` and ``pods`` of a node's allocatable; what is missing is 0."""
    if not amounts:
        return NO_HOST
    return Host(
        cpu_milli=cpu_milli(str(amounts.get("cpu", "0"))),
        memory_mib=int(_amount(str(amounts.get("memory", "0"))) // _BYTES_PER_MIB),
        pods=int(_amount(str(amounts.get("pods", "0")))),
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


def cpu_milli(text: str) -> int:
    """Read a CPU quantity in thousandths of a core, rounded up as Kubernetes does."""
    return math.ceil(_amount(text) * 1000)


def memory_mib(text: str) -> int:
    """Read a memory quantity in MiB, rounded up: a request is never counted too small."""
    return math.ceil(_amount(text) / _BYTES_PER_MIB)


@lru_cache(maxsize=4096)
def _amount(text: str) -> Decimal:
    """Read a quantity; what the API server would not have taken counts as nothing."""
    digits = text.rstrip("numkKMGTPEi")
    try:
        amount = Decimal(digits) * _SUFFIXES[text[len(digits) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)
    return min(max(Decimal(0), amount), _MOST) if amount.is_finite() else Decimal(0)
