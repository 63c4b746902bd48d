"""What all decoders of a pod's JSON share: container specs, and the errors that decoding raises."""

from collections.abc import Mapping, Sequence
from typing import Final

from fracgpu.k8s.container import ContainerKind, ContainerSpec

# The errors of decoding JSON: msgspec's own and invalid UTF-8 are ValueErrors, and deeply nested
# input raises RecursionError.
UNREADABLE: Final = (ValueError, RecursionError)


def container_specs(
    init_containers: Sequence[tuple[str, str | None, Mapping[str, str], Mapping[str, str]]],
    containers: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]],
) -> tuple[ContainerSpec, ...]:
    """Return the container specs of a pod, init containers first.

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
