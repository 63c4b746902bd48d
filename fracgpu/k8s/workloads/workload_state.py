"""The controllers of pods and what guards pods, at one moment, found by pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.workloads.quota import ResourceQuota
from fracgpu.k8s.workloads.service_selector import ServiceSelector
from fracgpu.k8s.workloads.workload import Workload

_T = TypeVar("_T", PodDisruptionBudget, ResourceQuota, ServiceSelector)


class ByNamespace(Generic[_T]):
    """Objects of one kind by their namespace."""

    def __init__(self, objects: Sequence[_T] = ()) -> None:
        self._found: dict[str, list[_T]] = {}
        for found in objects:
            self._found.setdefault(found.namespace, []).append(found)

    def of(self, namespace: str) -> Sequence[_T]:
        return self._found.get(namespace, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """Controllers by UID, and what guards the pods of each namespace.

    Attributes:
        unknown: kinds that could not be listed yet, as resources; what they guard is not known.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    budgets: ByNamespace[PodDisruptionBudget] = field(default_factory=ByNamespace)
    quotas: ByNamespace[ResourceQuota] = field(default_factory=ByNamespace)
    services: ByNamespace[ServiceSelector] = field(default_factory=ByNamespace)
    unknown: tuple[str, ...] = ()

    def of_owner(self, owner_uid: str) -> Sequence[Workload]:
        """Return the controllers with pods that have this controller themselves."""
        return [workload for workload in self.workloads.values() if workload.owner == owner_uid]

    def controllers_of(self, owner_uid: str) -> tuple[Workload, ...]:
        """Return a pod's controller, then the controller of that, as far as they are known."""
        first = self.workloads.get(owner_uid)
        if first is None:
            return ()
        second = self.workloads.get(first.owner)
        return (first,) if second is None else (first, second)
