"""What every reader of a pod's JSON needs: its containers in order, and what decoding may raise."""

from collections.abc import Mapping, Sequence
from typing import Final

from fracgpu.k8s.container import ContainerKind, ContainerSpec

# What decoding JSON may raise: besides msgspec's own errors (ValueErrors), bytes that are not UTF-8
# and nesting without end.
UNREADABLE: Final = (ValueError, RecursionError)


def container_specs(
    init_containers: Sequence[tuple[str, str | None, Mapping[str, str], Mapping[str, str]]],
    containers: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]],
) -> tuple[ContainerSpec, ...]:
    """Build a pod's container specs, init containers first.

    Args:
        init_containers: name, restartPolicy, limits and requests of each.
        containers: name, limits and requests of each app container.
    """
    inits = tuple(
        ContainerSpec(
            name=name,
            kind=ContainerKind.SIDECAR if policy == "Always" else ContainerKind.INIT,
            limits=limits,
            requests=requests,
        )
        for name, policy, limits, requests in init_containers
    )
    return inits + tuple(
        ContainerSpec(name=name, limits=limits, requests=requests)
        for name, limits, requests in containers
    )
