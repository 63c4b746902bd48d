"""What a pod's author wrote, so that an error about what we made of it names their keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fracgpu import names
from fracgpu.errors import RequestError

Written = tuple[tuple[str, str], ...]
"""Keys with their texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authors:
    """What stands behind our own keys in a pod that is taken over.

    Attributes:
        containers: container name to what its request was read from.
        models: what the allowed card models were read from.
    """

    containers: Mapping[str, Written] = field(default_factory=dict)
    models: Written = ()


def in_authors_words(
    error: RequestError, authors: Authors, *, own: Mapping[str, str]
) -> RequestError:
    """Give the error with the author's keys in place of ours, which its author never wrote.

    Args:
        error: about a request in our language.
        authors: what it was read from; without it the error stays as it is.
        own: the pod's annotations as its author wrote them.
    """
    key = error.field.partition(" ")[0]
    if not authors.containers or key in own:
        return error
    written, place = _behind(error, key, authors)
    return RequestError(
        field=", ".join(key for key, _ in written) + place,
        found=", ".join(text for _, text in written),
        wanted=error.wanted,
        hint=f"FracGPU reads it as {error.field} '{error.found}'"
        + (f"; {error.hint}" if error.hint else ""),
    )


def _behind(error: RequestError, key: str, authors: Authors) -> tuple[Written, str]:
    if key == names.MODEL and authors.models:
        return authors.models, ""
    for container, written in authors.containers.items():
        if error.field.endswith(f"container '{container}'"):
            return written, f" of container '{container}'"
    container, written = next(iter(authors.containers.items()))
    return written, f" of container '{container}'"
