"""One pod, whatever its words: its request as the core knows it, and what to write on the pod."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError, shorten
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects.amounts import annotation_field, limit_field
from fracgpu.request.dialects.authors import Authors, in_authors_words
from fracgpu.request.dialects.dialect import DialectReading, ForeignRequest, Options, PodForDialects
from fracgpu.request.dialects.key_owners import is_zero_amount
from fracgpu.request.dialects.native import ITEM_KEYS, annotations_of, items_of, pod_keys
from fracgpu.request.dialects.registry import SCHEDULERS, is_of_family, limit_owners
from fracgpu.request.dialects.resolve import Resolution, resolve
from fracgpu.request.language import parse_request
from fracgpu.request.need import PodRequest, SliceRequest

# Whole cards of device plugins; a node is shared or whole-card, so no pod can have both.
_WHOLE_CARDS: Final = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)|amd\.com/gpu", re.ASCII)

# Orders to NVIDIA's runtime plugin, and the answers it writes: cards past everybody's book.
_ORDERS: Final = re.compile(
    r"nvidia\.cdi\.k8s\.io/(container\.[a-z0-9-]+|[a-z0-9-]+\.gpus\.devices)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """What a pod asks for, and the edits that make it say so in our own language.

    Attributes:
        request: None when the pod asks for nothing.
        annotations: to be written on the pod, so that everybody after us reads our language alone.
        removals: container name to resources that must leave its limits and requests.
        origin: dialect and raw text of each container's request, or an empty string.
        authors: what the pod's author wrote, for errors about what we made of it.
        foreign_scheduler: the scheduler of another system that a pod which is taken over names; it
            must not go there, and is warned of it. Empty elsewhere.
        warnings: for the pod's author.
    """

    request: PodRequest | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    removals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    origin: str = ""
    authors: Authors = field(default_factory=Authors, compare=False)
    foreign_scheduler: str = ""
    warnings: tuple[str, ...] = ()


def translate_request(pod: PodForDialects, *, enabled: Set[str], options: Options) -> Translation:
    """Read a pod in our language and in the enabled dialects.

    A pod that already says in our language what its dialect says, word by word, is agreed with: so
    the result of one admission passes the next one unchanged.

    Raises:
        RequestError: something cannot be read or contradicts something else.
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
    warnings = _judge_orders(pod, asks=translation.request is not None)
    if not warnings:
        return translation
    return replace(translation, warnings=(*translation.warnings, *warnings))


def _taken_over(pod: PodForDialects, resolution: Resolution) -> Translation:
    own = _own_items(pod)
    asked = {ask.container: items_of(ask) for ask in resolution.requests}
    new = {}
    for ask in resolution.requests:
        if not _agreed(pod, ask, own=own.get(ask.container, {}), said=asked[ask.container]):
            new[ask.container] = asked[ask.container]
    written = annotations_of({**own, **new}, pod.containers) if new else {}
    written |= _pod_annotations(pod, resolution)
    written = {key: text for key, text in written.items() if pod.annotations.get(key) != text}
    removals = {ask.container: ask.foreign for ask in resolution.requests if ask.foreign}
    authors = Authors(
        containers={ask.container: ask.written for ask in resolution.requests},
        models=tuple(resolution.model_texts.items()),
    )
    try:
        request = parse_request({**pod.annotations, **written}, pod.containers)
    except RequestError as error:
        raise in_authors_words(error, authors, own=pod.annotations) from error
    assert request is not None, "every ask is a slice"
    return Translation(
        request=request,
        annotations=written,
        removals=removals,
        origin="; ".join(f"{ask.container} from {ask.origin}" for ask in resolution.requests),
        authors=authors,
        foreign_scheduler=pod.scheduler_name if pod.scheduler_name in SCHEDULERS else "",
        warnings=resolution.warnings,
    )


def _agreed(
    pod: PodForDialects, ask: ForeignRequest, *, own: Mapping[str, str], said: Mapping[str, str]
) -> bool:
    """Tell whether our own keys say just what the dialect says; False when they say nothing.

    Raises:
        RequestError: they say something else.
    """
    if own == said:
        return True
    spec = next(it for it in pod.containers if it.name == ask.container)
    beside = f"beside {shorten(ask.origin)}"
    if own:
        key = next(iter(own))
        raise RequestError(
            field=key,
            found=pod.annotations[key],
            wanted=f"no request for container '{ask.container}' {beside}",
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
    """Split our own annotations by container, ahead of the strict reading of the whole.

    Raises:
        RequestError: an annotation is not of a form that can be split.
    """
    items: dict[str, dict[str, str]] = {}
    for key in ITEM_KEYS:
        if key in pod.annotations:
            for name, item in _split(pod.annotations[key], key, pod.containers):
                items.setdefault(name, {})[key] = item
    return items


def _split(text: str, key: str, containers: Sequence[ContainerSpec]) -> list[tuple[str, str]]:
    apps = [it.name for it in containers if it.kind is ContainerKind.APP]
    if "=" not in text and "," not in text and apps:
        return [(apps[0], text.strip())]
    pairs: list[tuple[str, str]] = []
    for pair in text.split(","):
        name, equals, item = (piece.strip() for piece in pair.partition("="))
        if (
            not equals
            or not item
            or name not in {it.name for it in containers} - dict(pairs).keys()
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
    """Write what the dialects say of the whole pod; our own key may only say the same.

    Raises:
        RequestError: our own key says something else.
    """
    said = pod_keys(DialectReading(models=resolution.models, strategy=resolution.strategy))
    for key, text in said.items():
        own = pod.annotations.get(key)
        if own is not None and own != text:
            raise RequestError(
                field=key,
                found=own,
                wanted=f"'{shorten(text)}', as "
                f"{resolution.requests[0].origin.partition(':')[0]}'s annotations say",
                hint="keep one of the two",
            )
    return said


def _refuse_foreign_beside(pod: PodForDialects, translation: Translation) -> None:
    """Refuse what no node with shared cards offers in a pod that asks for a share of one.

    Raises:
        RequestError: a whole card, or a resource of a dialect that is off, would stay there.
    """
    assert translation.request is not None, "only pods that ask are judged"
    parts = {it.container: it for it in translation.request.slices}
    first = translation.request.slices[0]
    for spec in pod.containers:
        for key in sorted(spec.limits.keys() - set(translation.removals.get(spec.name, ()))):
            if not is_zero_amount(spec.limits[key]) and _is_elsewhere(key):
                said = _said_in(parts.get(spec.name, first), pod, translation.authors)
                raise RequestError(
                    field=limit_field(key, spec),
                    found=spec.limits[key],
                    wanted=f"it left out: {said} asks for a share of a card, and no node with "
                    "shared cards offers both",
                    hint=f'write {names.FRACTION}: "1" for a whole card',
                )


def _is_elsewhere(key: str) -> bool:
    if key.startswith(names.PREFIX):
        return False
    return bool(_WHOLE_CARDS.fullmatch(key) or limit_owners(key)) or is_of_family(key)


def _said_in(part: SliceRequest, pod: PodForDialects, authors: Authors) -> str:
    """Name the key that its author wrote a container's request in."""
    written = authors.containers.get(part.container, ())
    if written:
        return written[0][0]
    if part.share is not None:
        return names.FRACTION
    return names.MEMORY if names.MEMORY in pod.annotations else names.GPU_MEM


def _judge_orders(pod: PodForDialects, *, asks: bool) -> tuple[str, ...]:
    orders = sorted(key for key in pod.annotations if _ORDERS.fullmatch(key))
    if orders and asks:
        raise RequestError(
            field=annotation_field(orders[0]),
            found=pod.annotations[orders[0]],
            wanted="no order to the container runtime beside a request: FracGPU chooses the card",
            hint="leave it out",
        )
    return tuple(
        f"{annotation_field(key)} hands out cards past FracGPU's book; write {names.FRACTION} or "
        f"{names.MEMORY} instead"
        for key in orders
    )
