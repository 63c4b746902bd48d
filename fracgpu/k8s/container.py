"""A pod's containers as the rules see them: a name, a kind and the limits it carries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class ContainerKind(Enum):
    """When a container runs, which decides how its share adds up with the others'."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: it stays


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container of a pod's spec; init containers come before app containers, in spec order."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)


def pod_resource_sum(containers: Sequence[tuple[ContainerKind, int]]) -> int:
    """Fold amounts of one resource over a pod's containers by Kubernetes' own rule.

    Sidecars start in order among the init containers and stay, so an init container runs beside the
    sidecars before it, and the app containers beside all of them. The pod needs the larger of both.

    Source: kubernetes.io "Sidecar containers", resource sharing within containers.
    """
    sidecars = 0
    init_peak = 0
    apps = 0
    for kind, amount in containers:
        match kind:
            case ContainerKind.SIDECAR:
                sidecars += amount
                init_peak = max(init_peak, sidecars)
            case ContainerKind.INIT:
                init_peak = max(init_peak, sidecars + amount)
            case ContainerKind.APP:
                apps += amount
    return max(init_peak, sidecars + apps)
