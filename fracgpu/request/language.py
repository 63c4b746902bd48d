"""The request language: a strict parser of our annotations, and of our resources in limits."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any, Final, TypeVar

from fracgpu import names
from fracgpu.cards.card import FULL_CORES
from fracgpu.cards.card_class import Vendor, model_key
from fracgpu.errors import PodField, RequestError, listed, shorten
from fracgpu.globs import MAX_GLOB_CHARS, is_glob
from fracgpu.k8s.container import ContainerKind, ContainerSpec, app_containers
from fracgpu.request.bounds import (
    MAX_CONTAINERS,
    MAX_GLOBS,
    MAX_GLOBS_CHARS,
    MAX_NAME_CHARS,
    MAX_VALUE_CHARS,
)
from fracgpu.request.need import (
    MECHANISMS,
    Choice,
    Gang,
    Isolation,
    PodRequest,
    Rebalance,
    SliceRequest,
    Strategy,
    Topology,
)
from fracgpu.spelling import did_you_mean, nearest, room_for_list
from fracgpu.units import (
    Mib,
    parse_amount,
    parse_count,
    parse_memory_mib,
    parse_mib,
    parse_share,
)

MAX_CARDS: Final = 64
MAX_GANG: Final = 128  # so that a gang is placed in one step

_GANG_NAME: Final = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # as a label
_GANG_SIZE: Final = re.compile("[1-9][0-9]{0,2}")

_ABOUT_MOVES: Final = {
    names.MOVE_GRACE: (re.compile("[0-9]{1,9}"), "whole seconds, e.g. '120'"),
    names.MOVE_READY: (re.compile("true|false"), "true or false"),
    names.MOVE_REQUESTED: (
        re.compile("(?!(?i:false|no|0|)$).*", re.DOTALL),
        "the time of the request, e.g. '2026-01-31T12:00:00Z'; remove the annotation to take it "
        "back",
    ),
}

_ABOUT_CHANGES: Final = frozenset((*_ABOUT_MOVES, names.RESIZE))

_PAIRS: Final = "one item, or pairs 'container=item, container=item'"

# What is meant by a resource of ours that is written as an annotation.
MEANT_BY_RESOURCE: Final = {
    names.GPU_MEM: names.MEMORY,
    names.GPU_COUNT: names.CARDS,
    names.GPU_SLOT: names.CARDS,
}

_T = TypeVar("_T")


CHOICES: Final = {
    names.PLACEMENT: Choice(
        language=tuple(strategy.value for strategy in Strategy), offered=Strategy
    ),
    names.VENDOR: Choice(language=("nvidia", "amd"), offered=Vendor),
    names.TOPOLOGY: Choice(language=("any", "nvlink"), offered=Topology),
    names.ISOLATION: Choice(
        language=tuple(isolation.value for isolation in Isolation), offered=Isolation
    ),
    names.REBALANCE: Choice(language=("surge", "evict", "never"), offered=Rebalance),
}


def parse_request(
    annotations: Mapping[str, str], containers: Sequence[ContainerSpec]
) -> PodRequest | None:
    """Parse what a pod asks for; None when it asks for nothing.

    Every key with our prefix is parsed or rejected. Reserved keys are not checked here: whether a
    pod may have them depends on who wrote them.

    Raises:
        RequestError: a value cannot be parsed, or two contradict each other.
    """
    everything = annotations
    annotations = {key: text for key, text in annotations.items() if key.startswith(names.PREFIX)}
    if not annotations and not any(map(_resources_of_ours, containers)):
        return None  # nearly every pod
    refuse_beyond(annotations, containers)
    _refuse_unknown_keys(annotations)
    of_pod = _of_pod(annotations, _FIRST)
    of_pod.pop("gang", None)  # the scheduler alone reads it
    stated = {
        spec.name: parse_resource_limits(spec)
        for spec in containers
        if spec.limits or spec.requests
    }
    items, unnamed, main = _items_by_container(annotations, everything, containers)
    slices = []
    for spec in containers:
        if spec.name in items or spec.name in stated:
            own, (mib, slots) = items.get(spec.name, {}), stated.get(spec.name, (None, None))
            part = _slice(spec, own, annotations, mib, slots)
            if part is not None:
                slices.append(part)
    if not slices:
        _refuse_lonely_keys(annotations)
        return None
    if unnamed:
        _refuse_unclear_items(annotations, slices, unnamed, main)
    if names.ISOLATION in annotations:
        _refuse_several_cards_of_mps(of_pod["isolation"], slices)
        _refuse_unenforced_limits(annotations, of_pod["isolation"])
    return PodRequest(slices=tuple(slices), **of_pod, **_of_pod(annotations, _LAST))


def _slice(
    spec: ContainerSpec,
    own: Mapping[str, Any],
    annotations: Mapping[str, str],
    mib: Mib | None,
    slots: int | None,
) -> SliceRequest | None:
    """Return what a container asks for with its *own* items, and limits of *mib* and *slots*."""
    if "share" in own and "mib" in own:
        raise RequestError(
            field=names.FRACTION,
            found=annotations[names.FRACTION],
            wanted=f"either fraction or memory for container '{spec.name}', not both",
        )
    if "share" not in own and "mib" not in own:
        if mib is None:
            _refuse_orphans(spec, annotations, own)
            return None
        own = {**own, "mib": split_over_cards(mib, own.get("cards", 1), spec.name)}
    part = SliceRequest(
        container=spec.name, kind=spec.kind, stated_mib=mib, stated_slots=slots, **own
    )
    _refuse_other_limit(annotations, part)
    return part


def _refuse_unclear_items(
    annotations: Mapping[str, str],
    slices: Sequence[SliceRequest],
    unnamed: Sequence[str],
    main: str | None,
) -> None:
    """Reject an item without a name that is not for the first app container with a share.

    With the grant it is read as for that one, whatever anybody writes on the pod by then.
    """
    first = next((part.container for part in slices if part.kind is ContainerKind.APP), main)
    if first != main:
        raise RequestError(
            field=unnamed[0],
            found=annotations[unnamed[0]],
            wanted=f"pairs 'container=item': {names.DEFAULT_CONTAINER} names '{main}', and "
            f"'{first}' before it asks for a share too",
        )


def _refuse_other_limit(annotations: Mapping[str, str], part: SliceRequest) -> None:
    """Reject a limit in another unit than what is guaranteed, or below it."""
    if part.limit_mib is not None and part.limit_share is not None:
        key, wanted = names.FRACTION_LIMIT, f"no {names.MEMORY_LIMIT} as well"
    elif part.limit_mib is not None and part.mib is None:
        key, wanted = names.MEMORY_LIMIT, f"{names.FRACTION_LIMIT}, as it requests a fraction"
    elif part.limit_share is not None and part.share is None:
        key, wanted = names.FRACTION_LIMIT, f"{names.MEMORY_LIMIT}, as it requests memory"
    elif part.limit_mib is not None and part.mib is not None and part.limit_mib < part.mib:
        key, wanted = names.MEMORY_LIMIT, f"at least the {part.mib}Mi that it requests"
    elif part.limit_share is not None and part.share is not None and part.limit_share < part.share:
        key, wanted = names.FRACTION_LIMIT, f"at least the {float(part.share):.9g} that it requests"
    else:
        return
    raise RequestError(
        field=PodField(key, container=part.container), found=annotations[key], wanted=wanted
    )


def _refuse_unenforced_limits(
    annotations: Mapping[str, str], isolation: Sequence[Isolation]
) -> None:
    """Reject a limit for a pod that driver and kernel are not the first to limit."""
    if isolation[0] in (Isolation.BEST, Isolation.KERNEL):
        return
    for key in (names.FRACTION_LIMIT, names.MEMORY_LIMIT):
        if key in annotations:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"{names.ISOLATION}: kernel, or best: what is borrowed is limited by driver "
                "or kernel alone",
            )


def refuse_misread_changes(annotations: Mapping[str, str]) -> None:
    """Reject what the rebalancer, or the scheduler of a resize, would not read as it was meant.

    Not a part of :func:`parse_request`: a pod that has such a value already is placed all the same.

    Raises:
        RequestError: an annotation about moves, or about another size, has a value that means
            nothing.
    """
    if _ABOUT_CHANGES.isdisjoint(annotations):
        return  # nearly every pod
    if (size := annotations.get(names.RESIZE)) is not None:
        parse_memory_mib(size, field=names.RESIZE)
    for key, (form, wanted) in _ABOUT_MOVES.items():
        text = annotations.get(key)
        if text is not None and not form.fullmatch(text):
            raise RequestError(field=key, found=text, wanted=wanted)


def refuse_beyond(annotations: Mapping[str, str], containers: Sequence[ContainerSpec]) -> None:
    """Reject a pod beyond the bounds; the work does not depend on the length of its values.

    Raises:
        RequestError: too many containers, or too long a container name or annotation of ours.
    """
    if len(containers) > MAX_CONTAINERS:
        raise RequestError(
            field="the pod",
            found=f"{len(containers)} containers",
            wanted=f"at most {MAX_CONTAINERS} containers in a pod that asks for a share of a card",
        )
    for spec in containers:
        if len(spec.name) > MAX_NAME_CHARS:
            raise RequestError(
                field="the name of a container",
                found=spec.name,
                wanted=f"at most {MAX_NAME_CHARS} characters",
            )
    if max(map(len, annotations.values()), default=0) <= MAX_VALUE_CHARS:
        return
    for key in names.REQUEST_KEYS:
        if len(annotations.get(key, "")) > MAX_VALUE_CHARS:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"at most {MAX_VALUE_CHARS} characters",
            )


def _refuse_unknown_keys(annotations: Mapping[str, str]) -> None:
    unknown = annotations.keys() - names.POD_KEYS
    if unknown:
        key = min(unknown)
        words = [known_key.removeprefix(names.PREFIX) for known_key in names.REQUEST_KEYS]
        close = nearest(key.removeprefix(names.PREFIX).lower(), words)
        hint = f"did you mean {names.PREFIX}{close}?" if close else ""
        if key in MEANT_BY_RESOURCE:
            hint = f"it is a resource of containers; write {as_annotation(key, annotations[key])}"
        raise RequestError(
            field=f"annotation {shorten(key)}",
            found=annotations[key],
            wanted="one of " + ", ".join(names.REQUEST_KEYS),
            hint=hint,
        )


def as_annotation(key: str, text: str) -> str:
    """Return the annotation, with its value, that is meant by one of our keys written elsewhere."""
    mib = parse_amount(text) if key == names.GPU_MEM else None
    amount = shorten(text) if mib is None else f"{mib}Mi"
    return f'{MEANT_BY_RESOURCE.get(key, key)}: "{amount}"'


def _refuse_lonely_keys(annotations: Mapping[str, str]) -> None:
    lonely = [key for key in names.REQUEST_KEYS if key in annotations]
    if lonely:
        raise RequestError(
            field=lonely[0],
            found=annotations[lonely[0]],
            wanted=f"a pod that asks for a share with {names.FRACTION} or {names.MEMORY}",
            hint=f'add {names.FRACTION}: "1" for a whole card',
        )


_ORPHANS: Final = (names.CORES, names.CARDS, names.FRACTION_LIMIT, names.MEMORY_LIMIT)


def _refuse_orphans(
    spec: ContainerSpec, annotations: Mapping[str, str], own: Collection[str]
) -> None:
    for key in _ORPHANS if own else ():
        if ITEMS[key][0] in own:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=f"a {names.FRACTION} or {names.MEMORY} for container '{spec.name}' as well",
                hint=f'add {names.FRACTION}: "1" for a whole card',
            )
    if names.GPU_SLOT in spec.limits:
        raise RequestError(
            field=limit_of(names.GPU_SLOT, spec.name),
            found=spec.limits[names.GPU_SLOT],
            wanted=f"no slot without memory: the webhook writes it beside {names.GPU_MEM}",
            hint=f"ask with {names.FRACTION} or {names.MEMORY} instead",
        )


def main_container(
    annotations: Mapping[str, str], containers: Sequence[ContainerSpec]
) -> str | None:
    """Return the container that an item without a name is for, if the pod has any app container.

    It is the one that :func:`stated_main_container` returns, else the first app container that no
    other webhook has injected.
    """
    stated = stated_main_container(annotations, containers)
    return stated or next(iter(app_containers(containers)), None)


def stated_main_container(
    annotations: Mapping[str, str], containers: Sequence[ContainerSpec]
) -> str | None:
    """Return the app container that a pod says is the main one; None if it does not say.

    In a pod that has its grant, or whose template has, it is the first that was granted: a service
    mesh may have put its own container before it since. In any other it is the one that the pod
    names as its default: meshes whose webhook is called before ours write that.
    """
    apps = [spec for spec in containers if spec.kind is ContainerKind.APP]
    granted = [spec.name for spec in apps if names.GPU_MEM in spec.limits]
    if granted and names.GRANTED not in annotations:
        pairs = annotations.get(names.TEMPLATE_GRANT, "").split(",", MAX_CONTAINERS)
        in_template = {pair.partition("=")[0].strip() for pair in pairs}
        granted = [name for name in granted if name in in_template]
    if granted:
        return granted[0]
    default = annotations.get(names.DEFAULT_CONTAINER)
    return default if default in [spec.name for spec in apps] else None


def _items_by_container(
    annotations: Mapping[str, str],
    everything: Mapping[str, str],
    containers: Sequence[ContainerSpec],
) -> tuple[Mapping[str, Mapping[str, Any]], Sequence[str], str | None]:
    """Return each container's items by key, the keys whose item has no name, and whom those mean.

    Args:
        annotations: with our prefix.
        everything: all annotations of the pod.
        containers: of the pod.
    """
    keys = sorted(ITEMS.keys() & annotations.keys(), key=[*ITEMS].index)
    unnamed = [key for key in keys if "=" not in annotations[key]]
    main = main_container(everything, containers) if unnamed else None
    items: dict[str, dict[str, Any]] = {}
    for key in keys:
        field, parse = ITEMS[key]
        for name, item in _texts(annotations[key], key, containers, main=main):
            items.setdefault(name, {})[field] = parse(item, key)
    return items, unnamed, main


def _texts(
    text: str, key: str, containers: Sequence[ContainerSpec], *, main: str | None
) -> Iterable[tuple[str, str]]:
    """Return the items of one annotation: one for the main container, or ``name=item`` pairs."""
    if "=" in text:
        return _pairs(text, key, containers).items()
    if main is None:
        raise RequestError(field=key, found=text, wanted="a pod with at least one container")
    if "," in text and len(containers) > 1:
        raise RequestError(field=key, found=text, wanted=_PAIRS)
    return [(main, text.strip())]


def _pairs(text: str, key: str, containers: Sequence[ContainerSpec]) -> dict[str, str]:
    known = [spec.name for spec in containers]
    items: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, item = pair.partition("=")
        name, item = name.strip(), item.strip()
        if not equals or not name or not item:
            raise RequestError(field=key, found=text, wanted=_PAIRS)
        if name not in known:
            hint = did_you_mean(name, known)
            raise RequestError(
                field=key,
                found=text,
                wanted="names of this pod's containers: "
                + listed(known, limit=room_for_list(hint)),
                hint=hint,
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


# The keys whose value has one item for each container, with what an item is in a slice, and its
# parser.
ITEMS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    names.FRACTION: ("share", _share),
    names.MEMORY: ("mib", _memory),
    names.FRACTION_LIMIT: ("limit_share", _share),
    names.MEMORY_LIMIT: ("limit_mib", _memory),
    names.CORES: ("cores", _cores),
    names.CARDS: ("cards", _cards),
}


def parse_models(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Parse the card models that a pod accepts; empty means any.

    Raises:
        RequestError: a model is empty, or there are too many or too long ones.
    """
    text = annotations.get(names.MODEL)
    if text is None:
        return ()
    globs = tuple(piece.strip() for piece in text.split(","))
    if not all(glob.removeprefix("!").strip() for glob in globs):
        raise RequestError(
            field=names.MODEL,
            found=text,
            wanted="card models or globs, e.g. 'NVIDIA-A100*, *H100*'",
        )
    if len(globs) > MAX_GLOBS or max(map(len, globs)) > MAX_GLOB_CHARS:
        raise RequestError(
            field=names.MODEL,
            found=text,
            wanted=f"at most {MAX_GLOBS} models or globs of at most {MAX_GLOB_CHARS} characters",
        )
    total_chars = sum(len(glob) for glob in globs if is_glob(glob))
    if total_chars > MAX_GLOBS_CHARS:
        raise RequestError(
            field=names.MODEL,
            found=text,
            wanted=f"globs of at most {MAX_GLOBS_CHARS} characters together, not {total_chars}",
            hint="models named in full do not count",
        )
    return tuple(model_key(glob) for glob in globs)


def parse_gang(annotations: Mapping[str, str]) -> Gang | None:
    """Parse which pods a pod is to be placed with; None if with no others.

    Raises:
        RequestError: the value is not NAME/SIZE.
    """
    text = annotations.get(names.GANG)
    if text is None:
        return None
    name, _, size = text.partition("/")
    if not _GANG_NAME.fullmatch(name) or not _GANG_SIZE.fullmatch(size) or int(size) > MAX_GANG:
        raise RequestError(
            field=names.GANG,
            found=text,
            wanted=f"NAME/SIZE, where SIZE is how many pods the gang has, from 1 to {MAX_GANG}, "
            "e.g. 'train-7/4'",
        )
    return Gang(name=name, size=int(size))


_E = TypeVar("_E", bound=Enum)


def _isolations(annotations: Mapping[str, str]) -> tuple[Isolation, ...]:
    """Parse what may enforce a share, the most wanted first; empty means the best that there is."""
    text = annotations.get(names.ISOLATION)
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    found = dict.fromkeys(_chosen(word, text, names.ISOLATION, Isolation) for word in words)
    if len(found) > 1 and set(found) <= set(MECHANISMS):
        # A node's labels say what it has, and a pod's affinity cannot ask for one label or another
        # besides what else it asks for.
        raise RequestError(
            field=names.ISOLATION,
            found=text,
            wanted="one of these alone, or best or none at the end",
        )
    return tuple(found)


def _choice(key: str, offered: type[Enum]) -> Callable[[Mapping[str, str]], Enum]:
    return lambda annotations: _chosen(annotations[key], annotations[key], key, offered)


_Parsers = Mapping[str, tuple[str, Callable[[Mapping[str, str]], Any]]]

# The keys of a whole pod that are parsed before those of containers, and after them: what each is
# in a request, and its parser.
_FIRST: Final[_Parsers] = {
    names.PLACEMENT: ("strategy", _choice(names.PLACEMENT, Strategy)),
    names.TOPOLOGY: ("topology", _choice(names.TOPOLOGY, Topology)),
    names.ISOLATION: ("isolation", _isolations),
    names.GANG: ("gang", parse_gang),
    names.REBALANCE: ("rebalance", _choice(names.REBALANCE, Rebalance)),
}
_LAST: Final[_Parsers] = {
    names.VENDOR: ("vendor", _choice(names.VENDOR, Vendor)),
    names.MODEL: ("models", parse_models),
}

_ORDER: Final = (*_FIRST, *_LAST)


def _of_pod(annotations: Mapping[str, str], parsers: _Parsers) -> dict[str, Any]:
    """Return the fields of a request that annotations say for the whole pod."""
    present = parsers.keys() & annotations.keys()
    if not present:  # nearly every pod
        return {}
    ordered = sorted(present, key=_ORDER.index)
    return {parsers[key][0]: parsers[key][1](annotations) for key in ordered}


def required_isolation(isolation: Collection[Isolation]) -> Isolation | None:
    """Return the mechanism without which a pod does not run, or None."""
    found = set(isolation)
    return found.pop() if len(found) == 1 and found <= set(MECHANISMS) else None


def _refuse_several_cards_of_mps(
    isolation: Collection[Isolation], slices: Iterable[SliceRequest]
) -> None:
    """Reject what no node can: a client of MPS speaks to one daemon, and each is for one card."""
    if required_isolation(isolation) is Isolation.MPS:
        for part in slices:
            if part.cards > 1:
                raise RequestError(
                    field=names.ISOLATION,
                    found=Isolation.MPS.value,
                    wanted=f"one card for container '{part.container}': MPS knows only one",
                )


def requires_kernel(isolation: Collection[Isolation]) -> bool:
    """Report whether a pod runs only where driver or kernel limit it."""
    return required_isolation(isolation) is Isolation.KERNEL


def wanted_isolation(annotations: Mapping[str, str]) -> tuple[Isolation, ...]:
    """Return what may enforce a pod's share; a text that cannot be parsed counts as ``best``."""
    try:
        return _isolations(annotations) or (Isolation.BEST,)
    except RequestError:
        return (Isolation.BEST,)


def wants_kernel(annotations: Mapping[str, str]) -> bool:
    """Report whether a pod with these annotations runs only where driver or kernel limit it."""
    return requires_kernel(wanted_isolation(annotations))


def _chosen(word: str, text: str, key: str, offered: type[_E]) -> _E:
    for choice in offered:
        if choice.value == word:
            return choice
    known = [str(choice.value) for choice in offered]
    if word in CHOICES[key].language:
        hint = "this release does not support it yet"
    else:
        hint = did_you_mean(word, known)
    wanted = f"one of {', '.join(known)}" if len(known) > 1 else f"'{known[0]}'"
    raise RequestError(field=key, found=text, wanted=wanted, hint=hint)


def _resources_of_ours(spec: ContainerSpec) -> list[str]:
    """Return the resources with our prefix in a container's limits and requests."""
    return [key for key in (*spec.limits, *spec.requests) if key.startswith(names.PREFIX)]


def parse_resource_limits(spec: ContainerSpec) -> tuple[Mib | None, int | None]:
    """Return MiB and slots from a container's limits; requests may only repeat them."""
    if not _resources_of_ours(spec):
        return None, None  # nearly every container
    _refuse_other_resources(spec)
    mib = slots = None
    if names.GPU_MEM in spec.limits:
        field = limit_of(names.GPU_MEM, spec.name)
        mib = parse_mib(spec.limits[names.GPU_MEM], field=field)
    if names.GPU_SLOT in spec.limits:
        slots = parse_count(
            spec.limits[names.GPU_SLOT],
            field=limit_of(names.GPU_SLOT, spec.name),
            low=1,
            high=MAX_CARDS,
            wanted=f"what the webhook writes; set {names.GPU_MEM} instead",
        )
    for key in (names.GPU_MEM, names.GPU_SLOT):
        if key in spec.requests and spec.requests[key] != spec.limits.get(key):
            _refuse_other_request(key, spec, limit=mib if key == names.GPU_MEM else slots)
    return mib, slots


def limit_of(key: str, container: str) -> PodField:
    """Return the place of a limit as errors write it."""
    return PodField(key, container=container, amounts="limits")


def _refuse_other_resources(spec: ContainerSpec) -> None:
    for place, amounts in (("limits", spec.limits), ("requests", spec.requests)):
        for key in sorted(amounts):
            if key.startswith(names.PREFIX) and key not in (names.GPU_MEM, names.GPU_SLOT):
                raise RequestError(
                    field=PodField(key, container=spec.name, amounts=place),
                    found=amounts[key],
                    wanted=f"{names.GPU_MEM} in whole MiB",
                    hint=f"{key} is an annotation of the pod"
                    if key in names.REQUEST_KEYS
                    else f"use the annotation {names.CARDS} for several cards",
                )


def _refuse_other_request(key: str, spec: ContainerSpec, *, limit: int | None) -> None:
    """Raise for a request that differs from its limit; ``8000`` and ``8k`` are one amount."""
    field = PodField(key, container=spec.name, amounts="requests")
    if limit is None:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted="the same amount in limits",
            hint=f"set {names.GPU_MEM} in limits alone",
        )
    if parse_mib(spec.requests[key], field=field) != limit:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted=f"what its limits say, {limit}",
            hint="leave the request out; Kubernetes copies the limit",
        )


def split_over_cards(total_mib: Mib, cards: int, container: str) -> Mib:
    """Return a container's MiB per card: its total, split evenly over its cards.

    Raises:
        RequestError: the total is not a multiple of *cards*.
    """
    if total_mib % cards:
        below = total_mib - total_mib % cards
        raise RequestError(
            field=limit_of(names.GPU_MEM, container),
            found=str(total_mib),
            wanted=f"a number of MiB that divides evenly over its {cards} cards",
            hint=f"'{max(below, cards)}' would do",
        )
    return Mib(total_mib // cards)
