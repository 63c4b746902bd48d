"""Reads a pod in all enabled dialects: requests, contradictions, and warnings for other keys.

First come the keys themselves: which dialect owns each, and which are in the wrong place.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import PodField, RequestError, listed, shorten
from fracgpu.k8s.container import ContainerSpec, app_containers
from fracgpu.request.bounds import MAX_VALUE_CHARS
from fracgpu.request.dialects.amounts import annotation_field, limit_field
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
)
from fracgpu.request.dialects.native import spelled
from fracgpu.request.dialects.registry import DIALECTS, annotation_owners, any_foreign, limit_owners
from fracgpu.request.dialects.systems import kai
from fracgpu.request.language import refuse_beyond, stated_main_container
from fracgpu.request.need import Strategy

_ORIGIN_CHARS: Final = 60
_MOST_UNREAD: Final = 10  # keys listed in one warning
_MOST_WORDS: Final = 160  # characters of a suggestion in our own language in a warning


@dataclass(slots=True, kw_only=True)
class OwnedKeys:
    """The keys of one dialect in a pod.

    Attributes:
        limits: container name to its limits of this dialect.
        requests: container name to its requests of this dialect.
        annotations: pod annotations of this dialect.
        stray_annotations: resources of this dialect that were written as annotations.
        stray_limits: container name to annotations of this dialect that were written as limits.
    """

    dialect: Dialect
    limits: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: dict[str, dict[str, str]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    stray_annotations: dict[str, str] = field(default_factory=dict)
    stray_limits: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the pod has no key of this dialect."""
        return not (
            self.limits
            or self.requests
            or self.annotations
            or self.stray_annotations
            or self.stray_limits
        )

    def pieces(self, pod: PodForDialects) -> PodForDialects:
        """Return the pod with only this dialect's keys that are in the right place."""
        return msgspec.structs.replace(
            pod,
            annotations=self.annotations,
            containers=_with(pod.containers, limits=self.limits),
            main=stated_main_container(pod.annotations, pod.containers),
        )

    def mended(self, pod: PodForDialects) -> PodForDialects:
        """Return the pod with only this dialect's keys, the stray ones moved to the right place.

        It includes a limit that belongs to another dialect while this one is off, such as
        ``nvidia.com/gpu``: the author wrote both for one request.
        """
        annotations = dict(self.annotations)
        for amounts in self.stray_limits.values():
            annotations = {**amounts, **annotations}
        limits = {}
        for spec in pod.containers:
            limits[spec.name] = {
                key: text for key, text in spec.limits.items() if key in self.dialect.limits
            }
        if self.stray_annotations and (target := _target(pod, limits)):
            limits[target] = {**self.stray_annotations, **limits[target]}
        containers = _with(pod.containers, limits=limits)
        main = stated_main_container(pod.annotations, pod.containers)
        return msgspec.structs.replace(
            pod, annotations=annotations, containers=containers, main=main
        )


def _target(pod: PodForDialects, limits: Mapping[str, Mapping[str, str]]) -> str:
    """Return the container that a stray resource is for: the first with a request, else an app."""
    asking = [name for name, amounts in limits.items() if amounts]
    return next(iter([*asking, *app_containers(pod.containers)]), "")


def keys_of(pod: PodForDialects) -> tuple[str, ...]:
    """Return the keys in the result of :meth:`OwnedKeys.pieces`: limits, then annotations."""
    keys = [key for spec in pod.containers for key in sorted(spec.limits)]
    return tuple(dict.fromkeys([*keys, *sorted(pod.annotations)]))


def _with(
    containers: tuple[ContainerSpec, ...], *, limits: Mapping[str, Mapping[str, str]]
) -> tuple[ContainerSpec, ...]:
    return tuple(
        msgspec.structs.replace(spec, limits=limits.get(spec.name, {}), requests={})
        for spec in containers
    )


def _any_foreign(pod: PodForDialects) -> bool:
    keys = list(pod.annotations)
    for spec in pod.containers:
        keys += spec.limits
        keys += spec.requests
    return any_foreign(keys)


def find_owned_keys(pod: PodForDialects, *, enabled: Set[str]) -> tuple[OwnedKeys, ...]:
    """Return a pod's foreign keys by the dialect that owns them, in the registry's order."""
    if not _any_foreign(pod):
        return ()  # nearly every pod
    found: dict[str, OwnedKeys] = {}
    for spec in pod.containers:
        for key, text in spec.limits.items():
            _sort_limit(found, key, text, spec, enabled)
        for key, text in spec.requests.items():
            if owner := _owner(limit_owners(key), spec, enabled):
                _of(found, owner).requests.setdefault(spec.name, {})[key] = text
    for key, text in pod.annotations.items():
        _sort_annotation(found, key, text, enabled)
    for owned in found.values():
        _drop_zero_amounts(owned)
    return tuple(
        found[dialect.name]
        for dialect in DIALECTS
        if dialect.name in found and not found[dialect.name].is_empty
    )


def is_zero_amount(amount: str) -> bool:
    """Report whether an amount in limits asks for nothing, as templates with a switch write."""
    return amount == "0"


def _drop_zero_amounts(owned: OwnedKeys) -> None:
    """Remove containers all of whose resources of this dialect are 0: they ask for nothing.

    A 0 beside another amount is kept, and the dialect rejects it.
    """
    for amounts in (owned.limits, owned.requests):
        for name in [
            name for name, found in amounts.items() if all(map(is_zero_amount, found.values()))
        ]:
            del amounts[name]


def _sort_limit(
    found: dict[str, OwnedKeys], key: str, text: str, spec: ContainerSpec, enabled: Set[str]
) -> None:
    if owner := _owner(limit_owners(key), spec, enabled):
        _of(found, owner).limits.setdefault(spec.name, {})[key] = text
    elif owners := annotation_owners(key):
        _of(found, owners[0]).stray_limits.setdefault(spec.name, {})[key] = text


def _sort_annotation(found: dict[str, OwnedKeys], key: str, text: str, enabled: Set[str]) -> None:
    if owners := annotation_owners(key):
        _of(found, owners[0]).annotations[key] = text
    elif owner := _stray_owner(limit_owners(key), found, enabled):
        _of(found, owner).stray_annotations[key] = text


def _of(found: dict[str, OwnedKeys], dialect: Dialect) -> OwnedKeys:
    return found.setdefault(dialect.name, OwnedKeys(dialect=dialect))


def _owner(owners: tuple[Dialect, ...], spec: ContainerSpec, enabled: Set[str]) -> Dialect | None:
    """Return the dialect that owns a key in a container's limits or requests.

    It is the first of *owners* that is enabled, else the first whose other keys the container has,
    else the last, which gives the key the meaning that it has without any dialect.
    """
    if len(owners) <= 1:
        return owners[0] if owners else None
    for owner in owners:
        if owner.name in enabled:
            return owner
    for owner in owners:
        if any(key in owner.limits and key not in owner.quiet for key in spec.limits):
            return owner
    return owners[-1]


def _stray_owner(
    owners: tuple[Dialect, ...], found: Mapping[str, OwnedKeys], enabled: Set[str]
) -> Dialect | None:
    for owner in owners:
        if owner.name in enabled or owner.name in found:
            return owner
    return owners[-1] if owners else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a pod asks for in the enabled dialects, and warnings for its author.

    Attributes:
        requests: one for each container that asks for cards, in the order of the containers.
        model_texts: the annotations that *models* come from.
    """

    requests: tuple[ForeignRequest, ...] = ()
    models: tuple[str, ...] = ()
    model_texts: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy | None = None
    warnings: tuple[str, ...] = ()


NOTHING: Final = Resolution()


def resolve(pod: PodForDialects, *, enabled: Set[str], options: Options) -> Resolution:
    """Return what a pod asks for in the enabled dialects; `NOTHING` without any foreign key.

    Raises:
        RequestError: a value cannot be parsed, or two contradict each other.
    """
    present = find_owned_keys(pod, enabled=enabled)
    if not present:
        return NOTHING
    off = options.kai_runs or kai.KAI.name not in enabled
    if off and pod.scheduler_name in kai.SCHEDULERS:
        return replace(NOTHING, warnings=_left_to_kai(present, pod))
    found = [owned for owned in present if not owned.dialect.leaves(pod, options)]
    left = _left_warnings([owned for owned in present if owned not in found], pod)
    if not found:
        return replace(NOTHING, warnings=left)
    if any(owned.dialect.name in enabled for owned in found):
        refuse_beyond(pod.annotations, pod.containers)
    _refuse_two_dialects(found, pod.containers, enabled)
    readings: list[DialectReading] = []
    warnings = list(left)
    for owned in found:
        on = owned.dialect.name in enabled
        reading = _read_one(owned, pod, options) if on else DialectReading()
        readings.append(reading)
        if reading.requests:
            warnings += [*reading.warnings, *_unread_warnings(owned, pod)]
        warnings += _stray_warnings(owned, pod, options)
        if not reading.requests:
            warnings += _idle_warnings(owned, pod, options, on=on)
    resolution = _joined(readings, pod)
    model_keys = [
        key
        for owned, reading in zip(found, readings, strict=True)
        for key in owned.dialect.model_keys
        if reading.requests and key in pod.annotations
    ]
    texts = {key: pod.annotations[key] for key in model_keys}
    return replace(resolution, model_texts=texts, warnings=tuple(warnings))


def _left_to_kai(present: Sequence[OwnedKeys], pod: PodForDialects) -> tuple[str, ...]:
    keys = _loud_keys(present, pod)
    if not keys:
        return ()
    return (
        f"spec.schedulerName is '{pod.scheduler_name}', so the pod is left to KAI: FracGPU reads "
        f"no {', '.join(keys)} here and does not know of the card it gets; have the administrator "
        f"turn {kai.KAI.name} on and set kaiRuns to false to take such pods over",
    )


def _left_warnings(left: Sequence[OwnedKeys], pod: PodForDialects) -> tuple[str, ...]:
    return tuple(
        f"{', '.join(keys)} of {owned.dialect.title} is ignored, as a label of the pod or "
        "of its namespace says"
        for owned in left
        if (keys := _loud_keys([owned], pod))
    )


def _loud_keys(found: Sequence[OwnedKeys], pod: PodForDialects) -> tuple[str, ...]:
    """Return the keys of some dialects that are not quiet, each once."""
    keys = [
        key
        for owned in found
        for key in (*keys_of(owned.pieces(pod)), *owned.stray_annotations)
        if key not in owned.dialect.quiet
    ]
    return tuple(dict.fromkeys(keys))


def _unread_warnings(owned: OwnedKeys, pod: PodForDialects) -> tuple[str, ...]:
    """Return warnings for keys of a translated pod's system that no dialect parses."""
    dialect = owned.dialect
    places = (
        ("annotation", [key for key in pod.annotations if not any_foreign((key,))]),
        ("label", [key for key in pod.labels if key not in dialect.labels]),
    )
    unread = [
        f"{place} {key}"
        for place, keys in places
        for key in sorted(keys)
        if key.startswith(dialect.family)
    ]
    if not unread:
        return ()
    more = f" and {len(unread) - _MOST_UNREAD} more" if len(unread) > _MOST_UNREAD else ""
    listed = ", ".join(unread[:_MOST_UNREAD])
    return (f"{listed}{more} of {dialect.title} has no meaning for FracGPU",)


def _read_one(owned: OwnedKeys, pod: PodForDialects, options: Options) -> DialectReading:
    dialect = owned.dialect
    _refuse_long_values(owned)
    _refuse_other_requests(owned, pod)
    reading = dialect.read(owned.pieces(pod), options)
    if reading.requests:
        _refuse_rivals(owned, reading, pod)
    return replace(reading, requests=tuple(_filled(request, owned) for request in reading.requests))


def _filled(request: ForeignRequest, owned: OwnedKeys) -> ForeignRequest:
    limits = owned.limits.get(request.container, {})
    raw = [(key, limits[key]) for key in sorted(limits)]
    raw += [(key, owned.annotations[key]) for key in request.sources]
    text = ", ".join(f"{key}={_short(value)}" for key, value in raw)
    return replace(
        request,
        written=tuple(raw),
        dialect=owned.dialect.name,
        origin=f"{owned.dialect.name}: {text}",
        foreign=tuple(sorted({*limits, *owned.requests.get(request.container, {})})),
    )


def _short(text: str) -> str:
    return shorten(text, limit=_ORIGIN_CHARS)


def _refuse_long_values(owned: OwnedKeys) -> None:
    for key, text in owned.annotations.items():
        if len(text) > MAX_VALUE_CHARS:
            raise RequestError(
                field=annotation_field(key),
                found=text,
                wanted=f"at most {MAX_VALUE_CHARS} characters",
            )


def _refuse_other_requests(owned: OwnedKeys, pod: PodForDialects) -> None:
    """Raise for a request that differs from its limit, which extended resources do not allow."""
    for spec in pod.containers:
        limits = owned.limits.get(spec.name, {})
        for key, text in owned.requests.get(spec.name, {}).items():
            if limits.get(key) != text:
                raise RequestError(
                    field=PodField(key, container=spec.name, amounts="requests"),
                    found=text,
                    wanted="what its limits say"
                    + (f", {shorten(limits[key])}" if key in limits else "; they lack it"),
                    hint="leave the request out; Kubernetes copies the limit",
                )


def _refuse_rivals(owned: OwnedKeys, reading: DialectReading, pod: PodForDialects) -> None:
    for spec in pod.containers:
        for key in sorted(owned.dialect.rivals):
            if not is_zero_amount(spec.limits.get(key, "0")):
                source = reading.requests[0].sources[0]
                raise RequestError(
                    field=annotation_field(source),
                    found=owned.annotations[source],
                    wanted=f"either it or {limit_field(key, spec)}, not both in one pod",
                    hint="a pod gets a share of a card or whole cards",
                )


def _refuse_two_dialects(
    found: Sequence[OwnedKeys], containers: Sequence[ContainerSpec], enabled: Set[str]
) -> None:
    """Raise for a container with resources of two dialects if one of them is enabled."""
    for spec in containers:
        here = [owned for owned in found if spec.name in owned.limits]
        if len(here) > 1 and any(owned.dialect.name in enabled for owned in here):
            first, second = (sorted(owned.limits[spec.name])[0] for owned in here[:2])
            raise RequestError(
                field=limit_field(first, spec),
                found=spec.limits[first],
                wanted=f"one dialect on one container, and '{second}' is there too",
                hint="keep one of the two",
            )


def _joined(readings: Sequence[DialectReading], pod: PodForDialects) -> Resolution:
    by_container: dict[str, ForeignRequest] = {}
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    for reading in readings:
        for request in reading.requests:
            other = by_container.setdefault(request.container, request)
            if other is not request:
                raise RequestError(
                    field=f"container '{request.container}'",
                    found=f"{other.origin}; {request.origin}",
                    wanted="one dialect on one container",
                    hint="keep one of the two",
                )
        if reading.requests:
            models += reading.models
            strategy = strategy or reading.strategy
    return Resolution(
        requests=tuple(
            by_container[spec.name] for spec in pod.containers if spec.name in by_container
        ),
        models=models,
        strategy=strategy,
    )


def _stray_warnings(owned: OwnedKeys, pod: PodForDialects, options: Options) -> list[str]:
    """Return warnings for keys in the wrong place, where nothing reads them."""
    if not owned.stray_annotations and not owned.stray_limits:
        return []
    title = owned.dialect.title
    instead = _instead(owned, owned.mended(pod), options)
    warnings = []
    if owned.stray_annotations:
        stray = sorted(owned.stray_annotations)
        have, pronoun = ("have", "them") if len(stray) > 1 else ("has", "it")
        warnings.append(
            f"{listed(map(annotation_field, stray), limit=_MOST_WORDS)} {have} no effect there: "
            f"{title} reads {pronoun} in a container's limits; {instead}"
        )
    for spec in pod.containers:
        warnings += [
            f"{limit_field(key, spec)} has no effect there: {title} reads it among the pod's "
            f"annotations; {instead}"
            for key in sorted(owned.stray_limits.get(spec.name, {}))
        ]
    return warnings


def _idle_warnings(
    owned: OwnedKeys, pod: PodForDialects, options: Options, *, on: bool
) -> list[str]:
    """Return a warning for keys without effect: the dialect is off, or there is no request."""
    pieces = owned.pieces(pod)
    keys = keys_of(pieces)
    if all(key in owned.dialect.quiet for key in keys):
        return []
    instead, dialect = _instead(owned, pieces, options), owned.dialect
    found, many = listed(keys, limit=_MOST_WORDS), len(keys) > 1
    if on:
        has = "have no effect without" if many else "has no effect without"
        return [f"{found} {has} a request of {dialect.title}; {instead}"]
    gives = "are not read here and give" if many else "is not read here and gives"
    return [
        f"{found} {gives} no share of a card; {instead}, or have the dialect turned on "
        f"(namespace label {names.DIALECTS_LABEL}={dialect.name})"
    ]


def _instead(owned: OwnedKeys, pod: PodForDialects, options: Options) -> str:
    """Return advice what to write in our language in place of the dialect's keys."""
    words = ""
    try:
        if max(map(len, pod.annotations.values()), default=0) <= MAX_VALUE_CHARS:
            words = spelled(owned.dialect.read(pod, options), pod.containers)
    except RequestError:
        pass
    if not words:
        return f"write {names.FRACTION} or {names.MEMORY} instead"
    return (
        f"write {shorten(words, limit=_MOST_WORDS)} in place of "
        f"{listed(keys_of(pod), limit=_MOST_WORDS)}"
    )
