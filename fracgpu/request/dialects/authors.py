"""The keys that a pod's author wrote, so that errors about our translation name those keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fracgpu import names
from fracgpu.errors import MOST_FIELD, PodField, RequestError, quoted, shorten

Written = tuple[tuple[str, str], ...]
"""Keys with their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authors:
    """The author's keys from which our own keys in a translated pod come.

    Attributes:
        containers: container name to the keys that its request comes from.
        models: the keys that the allowed card models come from.
    """

    containers: Mapping[str, Written] = field(default_factory=dict)
    models: Written = ()


def in_authors_words(
    error: RequestError, authors: Authors, *, own: Mapping[str, str]
) -> RequestError:
    """Return the error with the author's keys in place of ours, which the author did not write.

    Args:
        error: an error about a request in our language.
        authors: the keys that the request comes from; if empty, the error is returned unchanged.
        own: the pod's annotations as its author wrote them.
    """
    if not authors.containers or error.field.key in own:
        return error
    written, container = _source_of(error.field, authors)
    return RequestError(
        field=PodField(", ".join(key for key, _ in written), container=container),
        found=", ".join(text for _, text in written),
        wanted=error.wanted,
        hint=f"FracGPU reads it as {shorten(error.field, limit=MOST_FIELD)} {quoted(error.found)}"
        + (f"; {error.hint}" if error.hint else ""),
    )


def _source_of(field: PodField, authors: Authors) -> tuple[Written, str]:
    """Return the author's keys, and the container to which they belong if it is one."""
    if field.key == names.MODEL and authors.models:
        return authors.models, ""
    named = field.container in authors.containers
    container = field.container if named else next(iter(authors.containers))
    return authors.containers[container], container
