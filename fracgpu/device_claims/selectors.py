"""The CEL expressions that our claims select cards by.

Each is a conjunction that first asks for our driver, and for an attribute before its value: an
attribute that is missing aborts the scheduling of the pod on every node.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.cards.card_class import DEFAULT_VENDOR, model_key
from fracgpu.device_claims import devices
from fracgpu.errors import RequestError
from fracgpu.globs import as_regex
from fracgpu.request.language import required_isolation
from fracgpu.request.need import ContainerNeed, PodNeed

# Limits of the API. Source: CELSelectorExpressionMaxLength and DeviceSelectorsMaxSize in k8s.io/api
# resource/v1.
MOST_BYTES: Final = 10 * 1024
MOST_SELECTORS: Final = 32

_ATTRIBUTES: Final = f'device.attributes["{names.DRA_DRIVER}"]'
_OURS: Final = f'device.driver == "{names.DRA_DRIVER}"'
_HAS_UUID: Final = f'"{devices.UUID}" in {_ATTRIBUTES}'
_IS_LISTED: Final = f"{_ATTRIBUTES}.{devices.UUID} in "
_BUT_UUID: Final = f"{_OURS} && {_HAS_UUID} && !({_ATTRIBUTES}.{devices.UUID} in "
_MEMORY: Final = f'device.capacity["{names.DRA_DRIVER}"].{devices.MEMORY}'


def shortlist(cards: Sequence[CardUuid]) -> str:
    """Return the expression that selects these cards, of which the first are the best."""
    return " && ".join((_OURS, _HAS_UUID, f"{_IS_LISTED}{_literal([str(one) for one in cards])}"))


def listed_cards(expression: str) -> tuple[CardUuid, ...]:
    """Return the cards of a shortlist, in order; none for any other expression."""
    start, is_list, cards = expression.partition(_IS_LISTED)
    if not is_list or start != f"{_OURS} && {_HAS_UUID} && ":
        return ()
    try:
        return tuple(map(CardUuid, msgspec.json.decode(cards, type=list[str])))
    except (ValueError, RecursionError):
        return ()


def but(cards: Collection[CardUuid]) -> tuple[str, ...]:
    """Return expressions that together leave out these cards; each has room for about 230."""
    found: list[str] = []
    some: list[str] = []
    left = room = MOST_BYTES - len(_BUT_UUID) - len("[])")
    for card in sorted(cards):
        size = len(_literal(card).encode()) + 1  # and a comma
        if size > left:
            found.append(f"{_BUT_UUID}{_literal(some)})")
            some, left = [], room
        some.append(card)
        left -= size
    if some:
        found.append(f"{_BUT_UUID}{_literal(some)})")
    return tuple(found)


def excluded_cards(expression: str) -> tuple[CardUuid, ...]:
    """Return the cards that an expression of `but` leaves out; none for any other."""
    start, leaves_out, cards = expression.partition(_BUT_UUID)
    if start or not leaves_out or not cards.endswith(")"):
        return ()
    try:
        return tuple(map(CardUuid, msgspec.json.decode(cards[:-1], type=list[str])))
    except (ValueError, RecursionError):
        return ()


def suitable(
    need: PodNeed,
    container: ContainerNeed,
    *,
    card_class: str = "",
) -> str:
    """Return the expression that selects the cards that a container may have at all.

    Args:
        need: the pod's.
        container: one of its containers.
        card_class: the class of the pool catalogue that it was granted; empty without one.

    Raises:
        RequestError: the pod's models are too many for an expression.
    """
    vendor = (need.vendor or DEFAULT_VENDOR).value
    parts = [_OURS, f'"{devices.VENDOR}" in {_ATTRIBUTES}']
    parts.append(f"{_ATTRIBUTES}.{devices.VENDOR} == {_literal(vendor)}")
    parts += _of_models(need.models)
    if card_class:
        parts.append(f'"{devices.CARD_CLASS}" in {_ATTRIBUTES}')
        parts.append(f"{_ATTRIBUTES}.{devices.CARD_CLASS} == {_literal(card_class)}")
    mechanism = required_isolation(need.isolation)
    if mechanism is not None:
        attribute = f"{_ATTRIBUTES}.{devices.ISOLATION}"
        parts.append(f'"{devices.ISOLATION}" in {_ATTRIBUTES}')
        parts.append(f"{attribute}.contains({_literal(mechanism.value)})")
    parts += _of_class(container)
    found = " && ".join(parts)
    if len(found.encode()) > MOST_BYTES:
        raise RequestError(
            field=names.MODEL,
            found=", ".join(need.models),
            wanted="fewer or shorter models: a claim has room for 10 KiB of them",
        )
    return found


def _of_models(models: Sequence[str]) -> list[str]:
    model = f"{_ATTRIBUTES}.{devices.MODEL}"
    wanted = [as_regex(_key(one)) for one in models if not one.startswith("!")]
    unwanted = [as_regex(_key(one[1:])) for one in models if one.startswith("!")]
    parts = [f'"{devices.MODEL}" in {_ATTRIBUTES}'] if models else []
    for mark, some in (("", wanted), ("!", unwanted)):
        if some:
            either = _literal(f"^({'|'.join(some)})$")
            parts.append(f"{mark}{model}.lowerAscii().matches({either})")
    return parts


def _key(glob: str) -> str:
    return model_key(glob).casefold()


def _of_class(container: ContainerNeed) -> list[str]:
    """Return what selects cards of which the share, rounded up, is what was granted."""
    if container.share is None:
        return []
    parts, of = container.share.numerator, container.share.denominator
    most, too_small = container.mib * of // parts, (container.mib - 1) * of // parts
    return [
        f'{_MEMORY}.compareTo(quantity("{most}Mi")) <= 0',
        f'{_MEMORY}.compareTo(quantity("{too_small}Mi")) > 0',
    ]


def _literal(value: object) -> str:
    """Return a string, or a list of them, in CEL, which writes them as JSON does."""
    return msgspec.json.encode(value).decode()
