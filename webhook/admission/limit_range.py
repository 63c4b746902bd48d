"""Distinguish the amounts that a LimitRange wrote into a pod from those of its author."""

import re
from collections.abc import Mapping
from typing import Final

from fracgpu.errors import RequestError

# The API server's LimitRanger plugin, which runs before all webhooks, notes what it set:
# "LimitRanger plugin set: cpu, memory request for container a; cpu limit for init container b".
# Source: kubernetes/plugin/pkg/admission/limitranger.
ANNOTATION: Final = "kubernetes.io/limit-ranger"
_BEGIN: Final = "LimitRanger plugin set: "
_FIELD: Final = re.compile(r"(limit|request)s\['([^']+)'\] of container '([^']+)'", re.ASCII)


def blame_limit_range(error: RequestError, annotations: Mapping[str, str]) -> RequestError:
    """Return *error*, with a hint if a LimitRange and not the author set the amount in question."""
    match = _FIELD.fullmatch(error.field)
    if match is None or not _was_set(annotations.get(ANNOTATION, ""), *match.groups()):
        return error
    return RequestError(
        field=error.field,
        found=error.found,
        wanted=error.wanted,
        hint=f"it is the default of a LimitRange of this namespace: state another amount, or have "
        f"{match[2]} taken out of its default and defaultRequest",
    )


def _was_set(text: str, which: str, key: str, container: str) -> bool:
    for piece in text.removeprefix(_BEGIN).split("; "):
        keys, found, _ = piece.partition(f" {which} for ")
        named = piece.endswith((f" container {container}", f" init container {container}"))
        if found and named and key in keys.split(", "):
            return True
    return False
