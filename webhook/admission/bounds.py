"""Limits on the objects that admission decodes, so that no object can delay all other pods."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import shorten
from fracgpu.request.bounds import (
    MAX_ANNOTATIONS,
    MAX_CONTAINERS,
    MAX_KEY_CHARS,
    MAX_NAME_CHARS,
    MAX_RESOURCES,
)
from webhook.admission.review import Container, Pod, PodSpec
from webhook.admission.verdict import AdmissionResult, Allowed, Denied

# Decoding hostile JSON takes 60 ns a byte. The API server stores annotations of at most 256 KiB
# (apimachinery, TotalAnnotationSizeLimitB); the rest of a pod is a few KiB.
MAX_OBJECT_BYTES: Final = 384 * 1024
MAX_TEMPLATES: Final = 64
MAX_TEMPLATE_CONTAINERS: Final = 2 * MAX_CONTAINERS  # in all pod templates of an object

_MAX_ANNOTATION_CHARS: Final = 256 * 1024
_MAX_RESOURCES: Final = 1000  # in all limits and requests of a pod together
_MAX_TERMS: Final = 100  # of the required node affinity; and expressions, and nodeSelector's labels
_MAX_VALUES: Final = 5_000  # of all these expressions
_PREFIX_BYTES: Final = names.PREFIX.encode()


def asks_in_json(body: bytes | msgspec.Raw) -> bool:
    """Report whether JSON that is too long to be decoded may contain a key of ours."""
    return _PREFIX_BYTES in bytes(body)


def size_of(body: msgspec.Raw) -> int:
    """Return the length of some JSON in bytes."""
    return memoryview(body).nbytes


def check_size(new: msgspec.Raw, old: msgspec.Raw | None, *, what: str) -> AdmissionResult | None:
    """Return the decision on an object that is too large to be decoded; None if it is not.

    An object that is already stored may always be updated. The policy ``fracgpu-pods`` guards
    FracGPU's own annotations there too.
    """
    if old is not None and size_of(old) > MAX_OBJECT_BYTES:
        return Allowed()
    size = size_of(new)
    if size <= MAX_OBJECT_BYTES:
        return None
    fault = (
        f"{what} is {size // 1024} KiB of JSON; want at most {MAX_OBJECT_BYTES // 1024} KiB where "
        "a share of a card is asked for"
    )
    return Denied(message=fault) if asks_in_json(new) else Allowed(warnings=(_unread(fault),))


def check_bounds(pod: Pod) -> AdmissionResult | None:
    """Return the decision on a pod that exceeds a limit; None if it exceeds none."""
    fault = _fault_of(pod)
    if not fault:
        return None
    return Denied(message=fault) if requests_cards(pod) else Allowed(warnings=(_unread(fault),))


def _unread(fault: str) -> str:
    return f"{fault}; requests in other systems' keys are ignored"


def requests_cards(pod: Pod) -> bool:
    """Report whether a pod has a key of ours, in its place or misplaced."""
    noted = (*pod.annotations, *pod.labels)
    return any(key.lower().startswith(names.PREFIX) for key in noted) or any(
        key.startswith(names.PREFIX)
        for container in pod.containers
        for key in _resources(container)
    )


def _resources(container: Container) -> Sequence[str]:
    found = container.resources
    return () if found is None else (*(found.limits or ()), *(found.requests or ()))


def _fault_of(pod: Pod) -> str:
    """Return which limit the pod exceeds; empty when it exceeds none.

    The API server refuses much of this as well, but only after admission.
    """
    containers = pod.containers
    if len(containers) > MAX_CONTAINERS:
        return (
            f"the pod has {len(containers)} containers; want at most {MAX_CONTAINERS} in a pod "
            "that asks for a share of a card"
        )
    return (
        _fault_of_annotations(pod.annotations)
        or _fault_of_containers(containers)
        or _fault_of_affinity(pod.spec)
    )


def _fault_of_annotations(found: Mapping[str, str]) -> str:
    if len(found) > MAX_ANNOTATIONS:
        return f"the pod has {len(found)} annotations; want at most {MAX_ANNOTATIONS}"
    lengths = [*map(len, found)]
    if sum(lengths) + sum(map(len, found.values())) > _MAX_ANNOTATION_CHARS:
        return (
            f"the pod's annotations are too long; want at most {_MAX_ANNOTATION_CHARS} characters "
            "together"
        )
    if max(lengths, default=0) > MAX_KEY_CHARS:
        return _fault_of_longest(found, "an annotation's key")
    return ""


def _fault_of_longest(keys: Iterable[str], what: str) -> str:
    longest = max(keys, key=len)
    return f"{what} is '{shorten(longest)}'; want at most {MAX_KEY_CHARS} characters"


def _fault_of_containers(containers: Sequence[Container]) -> str:
    present: set[str] = set()
    resources = 0
    for container in containers:
        name = container.name
        if len(name) > MAX_NAME_CHARS:
            return (
                f"the name of a container is '{shorten(name)}'; want at most {MAX_NAME_CHARS} "
                "characters"
            )
        if name in present:
            return f"the pod has two containers with the name '{name}'; want a name for each"
        present.add(name)
        if container.resources is None:
            continue
        held = _resources(container)
        resources += len(held)
        if len(held) > MAX_RESOURCES or resources > _MAX_RESOURCES:
            return (
                f"container '{name}' has more than {MAX_RESOURCES} resources, or all "
                f"containers more than {_MAX_RESOURCES}; want fewer in a pod that asks for a share "
                "of a card"
            )
        if max(map(len, held), default=0) > MAX_KEY_CHARS:
            return _fault_of_longest(held, "the name of a resource")
    return ""


def _fault_of_affinity(spec: PodSpec) -> str:
    selector, required = spec.node_selector or (), spec.required_nodes
    if not selector and required is None:
        return ""
    if len(selector) > _MAX_TERMS:
        return (
            f"the pod's nodeSelector has {len(selector)} labels; want at most {_MAX_TERMS} in a "
            "pod that asks for a share of a card"
        )
    terms = (required and required.node_selector_terms) or ()
    found = [
        expression
        for term in terms[:_MAX_TERMS]
        for expression in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]
    values = sum(len(expression.values or ()) for expression in found)
    if len(terms) <= _MAX_TERMS and len(found) <= _MAX_TERMS and values <= _MAX_VALUES:
        return ""
    return (
        f"the pod's required node affinity has {len(terms)} terms, {len(found)} expressions and "
        f"{values} values; want at most {_MAX_TERMS}, {_MAX_TERMS} and {_MAX_VALUES} in a pod that "
        "asks for a share of a card"
    )
