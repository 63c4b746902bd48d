"""The containers of a pod: name, kind, limits and requests, and how their resources add up."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec


class ContainerKind(Enum):
    """When a container runs, which decides how its resources add up with the others'."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod's spec; init containers come before app containers, in spec order.

    Attributes:
        injected: another webhook has added it in the request that creates the pod.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = {}
    requests: Mapping[str, str] = {}
    injected: bool = False


def app_containers(containers: Sequence[ContainerSpec]) -> list[str]:
    """Return the names of the app containers, without injected ones where there are others."""
    apps = [spec for spec in containers if spec.kind is ContainerKind.APP]
    return [spec.name for spec in apps if not spec.injected] or [spec.name for spec in apps]


def init_container_kind(restart_policy: str | None) -> ContainerKind:
    """Return the kind of an init container with this restartPolicy."""
    return ContainerKind.SIDECAR if restart_policy == "Always" else ContainerKind.INIT


_Amount = TypeVar("_Amount")


def pod_resource_sum(
    containers: Sequence[tuple[ContainerKind, _Amount]],
    *,
    larger: Callable[[Any, Any], Any] = max,
) -> _Amount:
    """Return what a pod needs of one resource, by Kubernetes' rule for its containers' amounts.

    Sidecars start in order among the init containers and keep running, so an init container runs
    beside the sidecars before it, and the app containers run beside all sidecars. The pod needs the
    larger of the two sums. Amounts may be arrays, with *larger* of each two elements.

    Source: kubernetes.io "Sidecar containers", resource sharing within containers.
    """
    sidecars: Any = 0
    init_peak: Any = 0
    apps: Any = 0
    for kind, amount in containers:
        match kind:
            case ContainerKind.SIDECAR:
                sidecars += amount
                init_peak = larger(init_peak, sidecars)
            case ContainerKind.INIT:
                init_peak = larger(init_peak, sidecars + amount)
            case ContainerKind.APP:
                apps += amount
    return larger(init_peak, sidecars + apps)  # type: ignore[no-any-return]
