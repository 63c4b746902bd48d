"""How much of an object admission looks at, so that no object can hold up everybody else's pods."""

from collections.abc import Iterator
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
from webhook.admission.pod import Container, Pod
from webhook.admission.verdict import AdmissionResult, Allowed, Denied

# Building objects out of hostile JSON takes 60 ns a byte. The API server stores annotations of at
# most 256 KiB (apimachinery, TotalAnnotationSizeLimitB); the rest of a pod is a few KiB.
MAX_OBJECT_BYTES: Final = 384 * 1024
MAX_TEMPLATES: Final = 64

_MAX_ANNOTATION_CHARS: Final = 256 * 1024
_MAX_RESOURCES: Final = 1000  # in all limits and requests of a pod
_MAX_TERMS: Final = 100  # of the required node affinity
_PREFIX_BYTES: Final = names.PREFIX.encode()


def asks_in_json(body: bytes | msgspec.Raw) -> bool:
    """Tell whether a key of ours may stand in JSON that is too long to be read."""
    return _PREFIX_BYTES in bytes(body)


def size_of(body: msgspec.Raw) -> int:
    """Give the length of some JSON in bytes."""
    return memoryview(body).nbytes


def check_size(new: msgspec.Raw, old: msgspec.Raw | None, *, what: str) -> AdmissionResult | None:
    """Judge an object that is too large to be read; None for one that is not.

    What was stored before stays free to change and to end. FracGPU's own annotations are guarded by
    the policy ``fracgpu-pods`` there too.
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
    """Judge a pod that has more of something than is read; None for one that has not."""
    fault = _fault_of(pod)
    if not fault:
        return None
    return Denied(message=fault) if requests_cards(pod) else Allowed(warnings=(_unread(fault),))


def _unread(fault: str) -> str:
    return f"{fault}; what it asks in other systems' words is left unread"


def requests_cards(pod: Pod) -> bool:
    """Tell whether a pod carries a key of ours, in its place or out of it."""
    noted = (*pod.annotations, *(pod.metadata.labels or ()))
    return any(key.lower().startswith(names.PREFIX) for key in noted) or any(
        key.startswith(names.PREFIX) for it in _containers(pod) for key in _resources(it)
    )


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers or ()
    yield from pod.spec.containers


def _resources(container: Container) -> Iterator[str]:
    if container.resources is not None:
        yield from container.resources.limits or ()
        yield from container.resources.requests or ()


def _fault_of(pod: Pod) -> str:
    """Say what keeps a pod from being read at all; empty when nothing does.

    Much of this the API server refuses as well, but only after admission.
    """
    containers = len(pod.spec.containers) + len(pod.spec.init_containers or ())
    if containers > MAX_CONTAINERS:
        return (
            f"the pod has {containers} containers; want at most {MAX_CONTAINERS} in a pod that "
            "asks for a share of a card"
        )
    return _fault_of_annotations(pod) or _fault_of_containers(pod) or _fault_of_affinity(pod)


def _fault_of_annotations(pod: Pod) -> str:
    found = pod.annotations
    if len(found) > MAX_ANNOTATIONS:
        return f"the pod has {len(found)} annotations; want at most {MAX_ANNOTATIONS}"
    if sum(len(key) + len(text) for key, text in found.items()) > _MAX_ANNOTATION_CHARS:
        return (
            f"the pod's annotations are too long; want at most {_MAX_ANNOTATION_CHARS} characters "
            "together"
        )
    longest = max(found, key=len, default="")
    return _fault_of_key(longest, "an annotation's key")


def _fault_of_key(key: str, what: str) -> str:
    if len(key) <= MAX_KEY_CHARS:
        return ""
    return f"{what} is '{shorten(key)}'; want at most {MAX_KEY_CHARS} characters"


def _fault_of_containers(pod: Pod) -> str:
    seen: set[str] = set()
    resources = 0
    for it in _containers(pod):
        if len(it.name) > MAX_NAME_CHARS:
            return (
                f"the name of a container is '{shorten(it.name)}'; want at most {MAX_NAME_CHARS} "
                "characters"
            )
        if it.name in seen:
            return f"the pod has two containers with the name '{it.name}'; want a name for each"
        seen.add(it.name)
        held = list(_resources(it))
        resources += len(held)
        if len(held) > MAX_RESOURCES or resources > _MAX_RESOURCES:
            return (
                f"container '{it.name}' has more than {MAX_RESOURCES} resources, or all together "
                f"more than {_MAX_RESOURCES}; want fewer in a pod that asks for a share of a card"
            )
        if fault := _fault_of_key(max(held, key=len, default=""), "the name of a resource"):
            return fault
    return ""


def _fault_of_affinity(pod: Pod) -> str:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    terms = (affinity and affinity.required and affinity.required.node_selector_terms) or ()
    expressions = sum(len(it.match_expressions or ()) for it in terms[:_MAX_TERMS])
    if len(terms) <= _MAX_TERMS and expressions <= _MAX_TERMS:
        return ""
    return (
        f"the pod's required node affinity has {len(terms)} terms and {expressions} expressions; "
        f"want at most {_MAX_TERMS} of each in a pod that asks for a share of a card"
    )
