"""Translates the request of a pod in any enabled dialect into our own request language."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import RequestError, shorten
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import annotation_field, limit_field
from fracgpu.request.dialects.authors import Authors, in_authors_words
from fracgpu.request.dialects.dialect import DialectReading, ForeignRequest, Options, PodForDialects
from fracgpu.request.dialects.native import annotations_of, items_of, pod_keys
from fracgpu.request.dialects.registry import (
    SCHEDULERS,
    is_of_family,
    limit_owners,
)
from fracgpu.request.dialects.resolve import Resolution, is_zero_amount, resolve
from fracgpu.request.language import ITEMS, main_container, parse_request
from fracgpu.request.need import PodRequest, SliceRequest

# Whole cards of device plugins. A node offers shared or whole cards, so no pod can have both.
_WHOLE_CARDS: Final = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)|amd\.com/gpu", re.ASCII)

# Annotations that make NVIDIA's container runtime inject cards, and those it writes in response.
# Such cards are not accounted for.
_CDI_INJECTION: Final = re.compile(
    r"nvidia\.cdi\.k8s\.io/(container\.[a-z0-9-]+|[a-z0-9-]+\.gpus\.devices)"
    r"|nvidia\.com/container\.[a-z0-9-]+\.gpus\.devices",
    re.ASCII,
)


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks for, and the changes that express it in our own language.

    Attributes:
        request: the request, or None when the pod asks for nothing.
        annotations: to be written on the pod, so that all other components parse our keys alone.
        removals: container name to resources to remove from its limits and requests.
        dialect: the dialect of the first container's request; empty for our own language.
        origin: dialect and raw text of each container's request, or an empty string.
        authors: the keys that the pod's author wrote, for errors about the translation.
        foreign_scheduler: the scheduler of another system that a translated pod names, and which
            must not get the pod; empty if there is none.
        warnings: for the pod's author.
    """

    request: PodRequest | None = None
    annotations: Mapping[str, str] = {}
    removals: Mapping[str, tuple[str, ...]] = {}
    dialect: str = ""
    origin: str = ""
    authors: Authors = Authors()
    foreign_scheduler: str = ""
    warnings: tuple[str, ...] = ()


def translate_request(pod: PodForDialects, *, enabled: Set[str], options: Options) -> Translation:
    """Return what a pod asks for in our language and in the enabled dialects.

    The pod may have the same request in our language as in a dialect, so that the result of one
    admission passes the next one unchanged.

    Raises:
        RequestError: a value cannot be parsed, or two contradict each other.
    """
    resolution = resolve(pod, enabled=enabled, options=options)
    if not resolution.requests:
        translation = Translation(
            request=parse_request(pod.annotations, pod.containers), warnings=resolution.warnings
        )
    else:
        translation = _taken_over(pod, resolution)
    if translation.request is not None:
        _refuse_foreign_beside(pod, translation)
    warnings = _check_cdi_injection(pod, asks=translation.request is not None)
    if not warnings:
        return translation
    return msgspec.structs.replace(translation, warnings=(*translation.warnings, *warnings))


def _taken_over(pod: PodForDialects, resolution: Resolution) -> Translation:
    own = _own_items(pod)
    asked = {foreign.container: items_of(foreign) for foreign in resolution.requests}
    new = {}
    for foreign in resolution.requests:
        if not _agreed(
            pod,
            foreign,
            own=own.get(foreign.container, {}),
            wanted=asked[foreign.container],
        ):
            new[foreign.container] = asked[foreign.container]
    written = annotations_of({**own, **new}, pod.containers) if new else {}
    written |= _pod_annotations(pod, resolution)
    written = {key: text for key, text in written.items() if pod.annotations.get(key) != text}
    removals = {
        foreign.container: foreign.foreign for foreign in resolution.requests if foreign.foreign
    }
    authors = Authors(
        containers={foreign.container: foreign.written for foreign in resolution.requests},
        models=tuple(resolution.model_texts.items()),
    )
    try:
        request = parse_request({**pod.annotations, **written}, pod.containers)
    except RequestError as error:
        raise in_authors_words(error, authors, own=pod.annotations) from error
    assert request is not None, "every foreign request becomes a slice"
    return Translation(
        request=request,
        annotations=written,
        removals=removals,
        dialect=resolution.requests[0].dialect,
        origin="; ".join(
            f"{foreign.container} from {foreign.origin}" for foreign in resolution.requests
        ),
        authors=authors,
        foreign_scheduler=pod.scheduler_name if pod.scheduler_name in SCHEDULERS else "",
        warnings=resolution.warnings,
    )


def _agreed(
    pod: PodForDialects,
    foreign: ForeignRequest,
    *,
    own: Mapping[str, str],
    wanted: Mapping[str, str],
) -> bool:
    """Report whether our own keys already have the request of the dialect; False without any.

    Raises:
        RequestError: our own keys have another request.
    """
    if own == wanted:
        return True
    spec = next(spec for spec in pod.containers if spec.name == foreign.container)
    beside = f"beside {shorten(foreign.origin)}"
    if own:
        key = next(iter(own))
        raise RequestError(
            field=key,
            found=pod.annotations[key],
            wanted=f"no request for container '{foreign.container}' {beside}",
            hint="keep one of the two",
        )
    if names.GPU_MEM in spec.limits:
        raise RequestError(
            field=limit_field(names.GPU_MEM, spec),
            found=spec.limits[names.GPU_MEM],
            wanted=f"no request of our own {beside}",
            hint="keep one of the two",
        )
    return False


def _own_items(pod: PodForDialects) -> dict[str, dict[str, str]]:
    """Return the items of our own annotations by container, before they are parsed strictly.

    Raises:
        RequestError: an annotation has a form that cannot be split.
    """
    items: dict[str, dict[str, str]] = {}
    for key in ITEMS:
        if key in pod.annotations:
            for name, item in _split(pod.annotations, key, pod.containers):
                items.setdefault(name, {})[key] = item
    return items


def _split(
    annotations: Mapping[str, str], key: str, containers: Sequence[ContainerSpec]
) -> list[tuple[str, str]]:
    text, main = annotations[key], main_container(annotations, containers)
    if "=" not in text and "," not in text and main is not None:
        return [(main, text.strip())]
    pairs: list[tuple[str, str]] = []
    for pair in text.split(","):
        name, equals, item = (piece.strip() for piece in pair.partition("="))
        if (
            not equals
            or not item
            or name not in {spec.name for spec in containers} - dict(pairs).keys()
        ):
            raise RequestError(
                field=key,
                found=text,
                wanted="one item, or pairs 'container=item, container=item' of this pod's "
                "containers, each once",
            )
        pairs.append((name, item))
    return pairs


def _pod_annotations(pod: PodForDialects, resolution: Resolution) -> dict[str, str]:
    """Return annotations for what the dialects set for the whole pod.

    Raises:
        RequestError: the pod has one of these annotations with another value.
    """
    wanted = pod_keys(DialectReading(models=resolution.models, strategy=resolution.strategy))
    for key, text in wanted.items():
        own = pod.annotations.get(key)
        if own is not None and own != text:
            raise RequestError(
                field=key,
                found=own,
                wanted=f"'{shorten(text)}', as {resolution.requests[0].dialect}'s annotations say",
                hint="keep one of the two",
            )
    return wanted


def _refuse_foreign_beside(pod: PodForDialects, translation: Translation) -> None:
    """Raise for resources that no node with shared cards offers.

    Raises:
        RequestError: a pod that asks for a share of a card would keep a whole card, or a resource
            of a dialect that is off.
    """
    assert translation.request is not None, "only pods with a request are checked"
    for spec in pod.containers:
        if not spec.limits:
            continue
        removed = translation.removals.get(spec.name, ())
        left = [
            key
            for key, amount in spec.limits.items()
            if key not in removed and not is_zero_amount(amount) and _is_elsewhere(key)
        ]
        if left:
            key = min(left)
            slices = translation.request.slices
            part = next((part for part in slices if part.container == spec.name), slices[0])
            key_of_request = _key_of_request(part, pod, translation.authors)
            raise RequestError(
                field=limit_field(key, spec),
                found=spec.limits[key],
                wanted=f"it left out: {key_of_request} asks for a share of a card, and no "
                "node with shared cards offers both",
                hint=f'write {names.FRACTION}: "1" for a whole card',
            )


def _is_elsewhere(key: str) -> bool:
    if key.startswith(names.PREFIX):
        return False
    return bool(_WHOLE_CARDS.fullmatch(key) or limit_owners(key)) or is_of_family(key)


def _key_of_request(part: SliceRequest, pod: PodForDialects, authors: Authors) -> str:
    """Return the key in which the author wrote a container's request."""
    written = authors.containers.get(part.container, ())
    if written:
        return written[0][0]
    if part.share is not None:
        return names.FRACTION
    return names.MEMORY if names.MEMORY in pod.annotations else names.GPU_MEM


def _check_cdi_injection(pod: PodForDialects, *, asks: bool) -> tuple[str, ...]:
    keys = sorted(filter(_CDI_INJECTION.fullmatch, pod.annotations))
    if not keys:
        return ()  # nearly every pod
    if asks:
        raise RequestError(
            field=annotation_field(keys[0]),
            found=pod.annotations[keys[0]],
            wanted="no card injected by the container runtime beside a request: FracGPU chooses "
            "the card",
            hint="leave it out",
        )
    return tuple(
        f"{annotation_field(key)} injects cards that FracGPU does not account for; write "
        f"{names.FRACTION} or {names.MEMORY} instead"
        for key in keys
    )
