"""Bounds on what is parsed of a pod, so that no request delays the others."""

from collections.abc import Mapping, Sequence
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec

# Kubernetes rejects longer names too, but only after mutating admission. Sources: RFC 1123 labels
# for containers; prefix/name of at most 253 and 63 characters for annotations and resources.
MAX_NAME_CHARS: Final = 63
MAX_KEY_CHARS: Final = 253 + 1 + 63

# Far above what real pods have.
MAX_CONTAINERS: Final = 128
MAX_RESOURCES: Final = 100  # in one container's limits or requests
MAX_ANNOTATIONS: Final = 1000
MAX_VALUE_CHARS: Final = 16 * 1024  # of one of our annotations, with an item for each container
MAX_GLOBS: Final = 32
MAX_GLOBS_CHARS: Final = 1024  # of all globs of a pod, without models named in full


def refuse_beyond(annotations: Mapping[str, str], containers: Sequence[ContainerSpec]) -> None:
    """Reject a pod beyond the bounds; the work does not depend on the length of its values.

    Raises:
        RequestError: too many containers, or too long a container name or annotation of ours.
    """
    if len(containers) > MAX_CONTAINERS:
        raise RequestError(
            field="the pod",
            found=f"{len(containers)} containers",
            wanted=f"at most {MAX_CONTAINERS} containers in a pod that asks for a share of a card",
        )
    for spec in containers:
        if len(spec.name) > MAX_NAME_CHARS:
            raise RequestError(
                field="the name of a container",
                found=spec.name,
                wanted=f"at most {MAX_NAME_CHARS} characters",
            )
    for key in names.REQUEST_KEYS:
        if key in annotations and len(annotations[key]) > MAX_VALUE_CHARS:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"at most {MAX_VALUE_CHARS} characters",
            )
