"""Distinguish the amounts that a LimitRange wrote into a pod from those of its author."""

from collections.abc import Mapping
from typing import Final

from fracgpu.errors import PodField, RequestError

# The API server's LimitRanger plugin, which runs before all webhooks, notes what it set:
# "LimitRanger plugin set: cpu, memory request for container a; cpu limit for init container b".
# Source: kubernetes/plugin/pkg/admission/limitranger.
ANNOTATION: Final = "kubernetes.io/limit-ranger"
_BEGIN: Final = "LimitRanger plugin set: "


def blame_limit_range(error: RequestError, annotations: Mapping[str, str]) -> RequestError:
    """Return *error*, with a hint if a LimitRange and not the author set the amount in question."""
    if not _was_set(annotations.get(ANNOTATION, ""), error.field):
        return error
    return RequestError(
        field=error.field,
        found=error.found,
        wanted=error.wanted,
        hint=f"it is the default of a LimitRange of this namespace: state another amount, or have "
        f"{error.field.key} taken out of its max, default and defaultRequest",
    )


def _was_set(text: str, field: PodField) -> bool:
    amount = field.amounts.removesuffix("s")  # a "limit" or a "request"
    for piece in text.removeprefix(_BEGIN).split("; ") if amount else ():
        keys, found, _ = piece.partition(f" {amount} for ")
        named = piece.endswith(
            (f" container {field.container}", f" init container {field.container}")
        )
        if found and named and field.key in keys.split(", "):
            return True
    return False
