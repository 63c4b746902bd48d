"""What a pod asks for: the request language read strictly, or why it makes no sense."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, TypeVar

from fracgpu import names
from fracgpu.card import model_key
from fracgpu.container import ContainerKind, ContainerSpec
from fracgpu.errors import RequestError
from fracgpu.units import (
    Mib,
    parse_count,
    parse_memory_mib,
    parse_mib,
    parse_share,
)

MAX_CARDS: Final = 64
FULL_CORES: Final = 100

_PAIRS: Final = "one item, or pairs 'container=item, container=item'"

# Keys of the language whose other values come with a later release.
_ONLY_CHOICE: Final = {names.TOPOLOGY: "any", names.ISOLATION: "none"}

_T = TypeVar("_T")


class Strategy(Enum):
    """Which of several fitting cards is the best one."""

    PACK = "pack"
    SPREAD = "spread"


class Rebalance(Enum):
    """How the rebalancer may move this pod."""

    EVICT = "evict"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """What one container asks, before any card: a share of a card, or MiB, on each of *cards*.

    Attributes:
        share: exact share of a card of some class, or None where *mib* says it.
        mib: MiB per card, or None where *share* says it.
        cores: percent of one card's compute, 0 where it is shared freely.
        stated_mib: total MiB that the container's limits already carry, or None.
        stated_slots: slots that the container's limits already carry, or None.
    """

    container: str
    kind: ContainerKind = ContainerKind.APP
    share: Fraction | None = None
    mib: Mib | None = None
    cores: int = 0
    cards: int = 1
    stated_mib: Mib | None = None
    stated_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What a pod asks for; *slices* is never empty."""

    slices: tuple[SliceRequest, ...]
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    rebalance: Rebalance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeed:
    """What one container must be given: *mib* and *cores* on each of *cards* distinct cards.

    With *share* set, only cards where that share is exactly *mib* will do.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    cards: int = 1
    mib: Mib
    cores: int = 0
    share: Fraction | None = None

    @property
    def total_mib(self) -> Mib:
        """What the container's gpu-mem limit says."""
        return Mib(self.cards * self.mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeed:
    """A request in MiB: what placement works with."""

    containers: tuple[ContainerNeed, ...]
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None


def read_request(
    annotations: Mapping[str, str], containers: Sequence[ContainerSpec]
) -> PodRequest | None:
    """Read what a pod asks for; None when it asks for nothing.

    Every key under our prefix is understood or refused. Reserved keys are not judged here: whether
    they may stand there depends on who wrote them.

    Raises:
        RequestError: something cannot be read or contradicts something else.
    """
    _refuse_unknown_keys(annotations)
    stated = {spec.name: _stated(spec) for spec in containers}
    shares = _items(annotations, names.FRACTION, containers, _share)
    memories = _items(annotations, names.MEMORY, containers, _memory)
    cores = _items(annotations, names.CORES, containers, _cores)
    cards = _items(annotations, names.CARDS, containers, _cards)
    slices = []
    for spec in containers:
        mib, slots = stated[spec.name]
        name = spec.name
        if name in shares and name in memories:
            raise RequestError(
                field=names.FRACTION,
                found=annotations[names.FRACTION],
                wanted=f"either fraction or memory for container '{name}', not both",
            )
        if name not in shares and name not in memories and mib is None:
            _refuse_orphans(spec, annotations, {names.CORES: cores, names.CARDS: cards})
            continue
        count = cards.get(name, 1)
        memory = memories.get(name)
        if name not in shares and memory is None and mib is not None:
            memory = per_card_mib(mib, count, name)
        slices.append(
            SliceRequest(
                container=name,
                kind=spec.kind,
                share=shares.get(name),
                mib=memory,
                cores=cores.get(name, 0),
                cards=count,
                stated_mib=mib,
                stated_slots=slots,
            )
        )
    if not slices:
        _refuse_lonely_keys(annotations)
        return None
    return PodRequest(
        slices=tuple(slices),
        models=_globs(annotations),
        strategy=_choice(annotations, names.PLACEMENT, Strategy),
        rebalance=_choice(annotations, names.REBALANCE, Rebalance),
    )


def _refuse_unknown_keys(annotations: Mapping[str, str]) -> None:
    known = (*names.REQUEST_KEYS, *names.RESERVED_KEYS)
    for key in sorted(annotations):
        if key.startswith(names.PREFIX) and key not in known:
            words = [it.removeprefix(names.PREFIX) for it in names.REQUEST_KEYS]
            close = difflib.get_close_matches(key.removeprefix(names.PREFIX).lower(), words, n=1)
            raise RequestError(
                field=f"annotation {key}",
                found=annotations[key],
                wanted="one of " + ", ".join(names.REQUEST_KEYS),
                hint=f"did you mean {names.PREFIX}{close[0]}?" if close else "",
            )
        only = _ONLY_CHOICE.get(key)
        if only is not None and annotations[key] != only:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"'{only}'",
                hint="this release offers nothing else",
            )


def _refuse_lonely_keys(annotations: Mapping[str, str]) -> None:
    lonely = [key for key in names.REQUEST_KEYS if key in annotations]
    if lonely:
        raise RequestError(
            field=lonely[0],
            found=annotations[lonely[0]],
            wanted=f"a pod that asks for a share with {names.FRACTION} or {names.MEMORY}",
            hint=f'add {names.FRACTION}: "1" for a whole card',
        )


def _refuse_orphans(
    spec: ContainerSpec,
    annotations: Mapping[str, str],
    items: Mapping[str, Mapping[str, int]],
) -> None:
    for key, by_container in items.items():
        if spec.name in by_container:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"a {names.FRACTION} or {names.MEMORY} for container '{spec.name}' as well",
                hint=f'add {names.FRACTION}: "1" for a whole card',
            )
    if names.GPU_SLOT in spec.limits:
        raise RequestError(
            field=_limit_of(names.GPU_SLOT, spec),
            found=spec.limits[names.GPU_SLOT],
            wanted=f"no slot without memory: the webhook writes it beside {names.GPU_MEM}",
            hint=f"ask with {names.FRACTION} or {names.MEMORY} instead",
        )


def _stated(spec: ContainerSpec) -> tuple[Mib | None, int | None]:
    """Read our resources from a container's limits; requests may only repeat them."""
    for place, amounts in (("limits", spec.limits), ("requests", spec.requests)):
        for key in sorted(amounts):
            if key.startswith(names.PREFIX) and key not in (names.GPU_MEM, names.GPU_SLOT):
                raise RequestError(
                    field=f"{place}['{key}'] of container '{spec.name}'",
                    found=amounts[key],
                    wanted=f"{names.GPU_MEM} in whole MiB",
                    hint=f"use the annotation {names.CARDS} for several cards",
                )
    mib = slots = None
    if names.GPU_MEM in spec.limits:
        field = _limit_of(names.GPU_MEM, spec)
        mib = parse_mib(spec.limits[names.GPU_MEM], field=field)
    if names.GPU_SLOT in spec.limits:
        slots = parse_count(
            spec.limits[names.GPU_SLOT],
            field=_limit_of(names.GPU_SLOT, spec),
            low=1,
            high=MAX_CARDS,
            wanted=f"what the webhook writes; state {names.GPU_MEM} instead",
        )
    for key in (names.GPU_MEM, names.GPU_SLOT):
        if key in spec.requests and spec.requests[key] != spec.limits.get(key):
            _refuse_other_request(key, spec, limit=mib if key == names.GPU_MEM else slots)
    return mib, slots


def _limit_of(key: str, spec: ContainerSpec) -> str:
    return f"limits['{key}'] of container '{spec.name}'"


def _refuse_other_request(key: str, spec: ContainerSpec, *, limit: int | None) -> None:
    """Refuse a request that is not its limit; ``8000`` and ``8k`` are one amount."""
    field = f"requests['{key}'] of container '{spec.name}'"
    if limit is None:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted="the same amount in limits",
            hint=f"state {names.GPU_MEM} in limits alone",
        )
    if parse_mib(spec.requests[key], field=field) != limit:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted=f"what its limits say, {limit}",
            hint="leave the request out, Kubernetes copies the limit",
        )


def per_card_mib(total_mib: Mib, cards: int, container: str) -> Mib:
    """Split a container's total MiB evenly over its cards.

    Raises:
        RequestError: it does not divide.
    """
    if total_mib % cards:
        below = total_mib - total_mib % cards
        raise RequestError(
            field=f"limits['{names.GPU_MEM}'] of container '{container}'",
            found=str(total_mib),
            wanted=f"a number of MiB that divides evenly over its {cards} cards",
            hint=f"'{max(below, cards)}' would do",
        )
    return Mib(total_mib // cards)


def _items(
    annotations: Mapping[str, str],
    key: str,
    containers: Sequence[ContainerSpec],
    parse: Callable[[str, str], _T],
) -> dict[str, _T]:
    """Read one annotation: one item for the first app container, or ``name=item`` pairs."""
    if key not in annotations:
        return {}
    text = annotations[key]
    known = [spec.name for spec in containers]
    apps = [spec.name for spec in containers if spec.kind is ContainerKind.APP]
    if "=" not in text:
        if not apps:
            raise RequestError(field=key, found=text, wanted="a pod with at least one container")
        if "," in text and len(known) > 1:
            raise RequestError(field=key, found=text, wanted=_PAIRS)
        return {apps[0]: parse(text.strip(), key)}
    return {name: parse(item, key) for name, item in _pairs(text, key, known).items()}


def _pairs(text: str, key: str, known: Sequence[str]) -> dict[str, str]:
    items: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, item = (piece.strip() for piece in pair.partition("="))
        if not equals or not name or not item:
            raise RequestError(field=key, found=text, wanted=_PAIRS)
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise RequestError(
                field=key,
                found=text,
                wanted=f"names of this pod's containers: {', '.join(known)}",
                hint=f"did you mean '{close[0]}'?" if close else "",
            )
        if name in items:
            raise RequestError(field=key, found=text, wanted=f"container '{name}' only once")
        items[name] = item
    return items


def _share(text: str, key: str) -> Fraction:
    return parse_share(text, field=key)


def _memory(text: str, key: str) -> Mib:
    return parse_memory_mib(text, field=key)


def _cores(text: str, key: str) -> int:
    wanted = "percent of one card's compute, a whole number from 1 to 100, e.g. '30'"
    return parse_count(text, field=key, low=1, high=FULL_CORES, wanted=wanted)


def _cards(text: str, key: str) -> int:
    wanted = f"a whole number of cards from 1 to {MAX_CARDS}, e.g. '2'"
    return parse_count(text, field=key, low=1, high=MAX_CARDS, wanted=wanted)


def _globs(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(names.MODEL)
    if text is None:
        return ()
    globs = tuple(piece.strip() for piece in text.split(","))
    if not all(globs):
        raise RequestError(
            field=names.MODEL,
            found=text,
            wanted="card models or globs, e.g. 'NVIDIA-A100*, *H100*'",
        )
    return tuple(model_key(glob) for glob in globs)


_E = TypeVar("_E", bound=Enum)


def _choice(annotations: Mapping[str, str], key: str, choices: type[_E]) -> _E | None:
    text = annotations.get(key)
    if text is None:
        return None
    for choice in choices:
        if choice.value == text:
            return choice
    known = [str(choice.value) for choice in choices]
    close = difflib.get_close_matches(text, known, n=1)
    raise RequestError(
        field=key,
        found=text,
        wanted="one of " + ", ".join(known),
        hint=f"did you mean '{close[0]}'?" if close else "",
    )
