"""Finds requests in the wrong place: labels instead of annotations, and keys with capitals."""

from collections.abc import Iterable, Mapping
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError

_MOST_SHOWN: Final = 80


def refuse_misplaced(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings about labels under our prefix, which have no effect.

    Raises:
        RequestError: a label would be a request as an annotation, or an annotation would be ours
            in lower case. (The API server accepts capitals in an annotation's prefix.)
    """
    for key in sorted(annotations):
        if key.startswith(names.PREFIX):
            continue
        small = key.lower()
        if small.startswith(names.PREFIX):
            raise RequestError(
                field=f"annotation {key[:_MOST_SHOWN]}",
                found=annotations[key],
                wanted=f"{names.PREFIX} in small letters",
                hint=f"did you mean {small}?" if small in names.POD_KEYS else "",
            )
    ours = sorted([key for key in labels if key.startswith(names.PREFIX)])
    for key in ours:
        small = key.lower()
        if small in names.POD_KEYS:
            raise RequestError(
                field=f"label {key}",
                found=labels[key],
                wanted="no such label: a request is read from the pod's annotations",
                hint=f'write the annotation {small}: "{labels[key]}"',
            )
    if not ours:
        return ()
    many = f" and {len(ours) - 1} more" if len(ours) > 1 else ""
    return (f"label {ours[0][:_MOST_SHOWN]}{many} has no effect: FracGPU reads annotations",)


def requests_among(keys: Iterable[str]) -> list[str]:
    """Return those of *keys* that would be requests as annotations of a pod, in any case."""
    return sorted(key for key in keys if key.lower() in names.REQUEST_KEYS)
