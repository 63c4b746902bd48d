"""The JSON of our Node annotations: cards, cordons, heat, foreign memory and their time.

Unknown fields are skipped, because a later version may have written them. Known fields are parsed
strictly, and callers treat a card whose annotation cannot be parsed as full.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import (
    DEFAULT_SLOTS,
    MOST_CARDS,
    Card,
    CardUuid,
    Cordon,
    CordonEffect,
    Health,
)
from fracgpu.errors import WireError, decode_wire
from fracgpu.units import MAX_MIB, Mib

# A larger annotation is not one of ours: 64 containers on 8 cards need less than 40 kB.
MAX_ANNOTATION_CHARS: Final = 64 * 1024

_MOST_KNOWN: Final = 8_192  # inventories, one for each node
_DIGEST_BYTES: Final = 16


_EFFECTS: Final = {effect.value: effect for effect in CordonEffect}

_FIRST_YEAR, _LAST_YEAR = 1970, 9998

# Readers count in 64 bits, sums included, with a column for each card of the node that has most: so
# one node cannot stop the cluster's roles.
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _WireCard(msgspec.Struct, rename="camel", omit_defaults=True):
    uuid: str
    index: _Amount
    model: str
    mib: int
    reserved_mib: _Amount = 0
    health: str = Health.HEALTHY.value
    reason: str = ""
    numa: _Amount | None = None
    links: dict[str, _Amount] = msgspec.field(default_factory=dict)
    slots: _Amount = DEFAULT_SLOTS
    limits_mib: _Amount = 0
    errors: tuple[str, ...] = ()


class _WireCards(msgspec.Struct):
    cards: Annotated[list[_WireCard], msgspec.Meta(max_length=MOST_CARDS)]


class _WireCordon(msgspec.Struct, omit_defaults=True):
    until: datetime
    reason: str = ""
    effect: str = CordonEffect.NO_SCHEDULE.value


_cards_decoder: Final = msgspec.json.Decoder(_WireCards)

_cordons_decoder: Final = msgspec.json.Decoder(dict[str, _WireCordon])

_heat_decoder: Final = msgspec.json.Decoder(dict[str, float])

_foreign_decoder: Final = msgspec.json.Decoder(dict[str, int])

_used_decoder: Final = msgspec.json.Decoder(dict[str, dict[str, int]])

_encoder: Final = msgspec.json.Encoder(order="sorted")


class _KnownCards:
    """The inventories that were read last, by the digest of their texts.

    A node changes with each report of its cards' load, and its cards do not: so they are decoded
    once, and are no new objects for the garbage collector each time. The texts themselves would be
    as large as all else that is known of the nodes.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Card, ...]] = {}

    def read(self, text: str) -> tuple[Card, ...]:
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
        found = self._known.get(digest)
        if found is None:
            found = _decoded_cards(text)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[digest] = found
        return found


_known_cards: Final = _KnownCards()


def read_cards(text: str) -> tuple[Card, ...]:
    """Parse ``fracgpu.io/cards``; an empty text is an empty inventory.

    Raises:
        WireError: *text* has another form than :func:`write_cards` writes, or lists a card twice.
    """
    return _known_cards.read(text) if text else ()


def _decoded_cards(text: str) -> tuple[Card, ...]:
    wire = decode_wire(_cards_decoder.decode, text, what=names.NODE_CARDS)
    if len({card.uuid for card in wire.cards}) != len(wire.cards):
        raise WireError(what=names.NODE_CARDS, message="a card is listed twice")
    return tuple(_card(card) for card in wire.cards)


def write_cards(cards: Sequence[Card]) -> str:
    """Return an inventory as compact JSON, cards by index."""
    return _encoder.encode(
        _WireCards(
            cards=[
                _WireCard(
                    uuid=card.uuid,
                    index=card.index,
                    model=card.model,
                    mib=card.total_mib,
                    reserved_mib=card.reserved_mib,
                    health=card.health.value,
                    reason=card.health_reason,
                    numa=card.numa_node,
                    links={str(uuid): distance for uuid, distance in card.links.items()},
                    slots=card.slots,
                    limits_mib=card.limits_mib,
                    errors=card.errors,
                )
                for card in sorted(cards, key=lambda card: (card.index, card.uuid))
            ]
        )
    ).decode()


def read_cordons(text: str) -> tuple[Cordon, ...]:
    """Parse ``fracgpu.io/cordons``; an empty text means none.

    A cordon without an effect, as earlier versions wrote it, closes its card, and so does one with
    an effect that this version does not know.

    Raises:
        WireError: *text* has another form than :func:`write_cordons` writes.
    """
    if not text:
        return ()
    wire = decode_wire(_cordons_decoder.decode, text, what=names.NODE_CORDONS)
    return tuple(
        Cordon(
            card=CardUuid(uuid),
            until=_utc(uuid, cordon.until),
            reason=cordon.reason,
            effect=_EFFECTS.get(cordon.effect, CordonEffect.NO_SCHEDULE),
        )
        for uuid, cordon in sorted(wire.items())
    )


def write_cordons(cordons: Sequence[Cordon]) -> str:
    """Return cordons as compact JSON with sorted keys and times in UTC."""
    return _encoder.encode(
        {
            cordon.card: _WireCordon(
                until=cordon.until.astimezone(UTC),
                reason=cordon.reason,
                effect=cordon.effect.value,
            )
            for cordon in cordons
        }
    ).decode()


def write_heat(heat: Mapping[CardUuid, float]) -> str:
    """Return how busy each card was lately, 0..1, as compact JSON with sorted keys."""
    return _encoder.encode({str(uuid): ratio for uuid, ratio in heat.items()}).decode()


def write_foreign(foreign: Mapping[CardUuid, Mib]) -> str:
    """Return the MiB in use on each card by no known pod, as compact JSON with sorted keys."""
    return _encoder.encode({str(uuid): int(mib) for uuid, mib in foreign.items()}).decode()


def write_used(used: Mapping[CardUuid, Mapping[str, Mib]]) -> str:
    """Return the MiB that pods use of each card, by their UIDs, as compact JSON."""
    return _encoder.encode({str(uuid): dict(pods) for uuid, pods in used.items()}).decode()


def read_used(text: str) -> Mapping[CardUuid, Mapping[str, Mib]]:
    """Parse ``fracgpu.io/used``: the MiB that pods use of each card, by their UIDs.

    Raises:
        WireError: *text* is not an object with such values.
    """
    if not text:
        return {}
    found = decode_wire(_used_decoder.decode, text, what=names.NODE_USED)
    return {
        CardUuid(uuid): {uid: Mib(mib) for uid, mib in pods.items()} for uuid, pods in found.items()
    }


def read_heat(text: str) -> Mapping[CardUuid, float]:
    """Parse ``fracgpu.io/heat``: how busy each card was lately, 0..1.

    Raises:
        WireError: *text* is not an object with such values.
    """
    if not text:
        return {}
    found = decode_wire(_heat_decoder.decode, text, what=names.NODE_HEAT)
    for uuid, ratio in found.items():
        if not 0 <= ratio <= 1:
            raise WireError(what=names.NODE_HEAT, message=f"{uuid} is {ratio}; want 0 to 1")
    return {CardUuid(uuid): ratio for uuid, ratio in found.items()}


def read_foreign(text: str) -> Mapping[CardUuid, Mib]:
    """Parse ``fracgpu.io/foreign``: the MiB in use on each card by no known pod.

    Raises:
        WireError: *text* is not an object with such values.
    """
    if not text:
        return {}
    found = decode_wire(_foreign_decoder.decode, text, what=names.NODE_FOREIGN)
    for uuid, mib in found.items():
        if not 0 <= mib <= MAX_MIB:
            message = f"{uuid} is {mib}; want 0 to {MAX_MIB} MiB"
            raise WireError(what=names.NODE_FOREIGN, message=message)
    return {CardUuid(uuid): Mib(mib) for uuid, mib in found.items()}


def write_time(at: datetime) -> str:
    """Return a time in UTC in the form of RFC 3339, in whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_uuids(text: str) -> frozenset[CardUuid]:
    """Parse cards as people write them: UUIDs separated by commas; blanks are ignored."""
    return frozenset(CardUuid(uuid) for part in text.split(",") if (uuid := part.strip()))


def read_load_time(text: str) -> datetime:
    """Parse ``fracgpu.io/load-time``: when the agent last confirmed heat and foreign memory.

    Raises:
        WireError: *text* is not a time with a time zone.
    """
    return decode_wire(_time_in_utc, text, what=names.NODE_LOAD_TIME)


def _time_in_utc(text: str) -> datetime:
    found = msgspec.convert(text, datetime)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; want UTC")
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:  # readers add to it
        raise ValueError(f"{text!r} is no time of an agent")
    return found.astimezone(UTC)


def _utc(uuid: str, at: datetime) -> datetime:
    if at.tzinfo is None:
        message = f"the time of {uuid} has no time zone; want UTC"
        raise WireError(what=names.NODE_CORDONS, message=message)
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        message = f"the time of {uuid} is out of range"
        raise WireError(what=names.NODE_CORDONS, message=message) from error


def _card(wire: _WireCard) -> Card:
    try:
        health = Health(wire.health)
    except ValueError:
        raise WireError(
            what=names.NODE_CARDS,
            message=f"health of {wire.uuid} is {wire.health!r}; want healthy or unhealthy",
        ) from None
    if not 0 <= wire.mib <= MAX_MIB:
        raise WireError(what=names.NODE_CARDS, message=f"{wire.uuid} has {wire.mib} MiB")
    return Card(
        uuid=CardUuid(wire.uuid),
        index=wire.index,
        model=wire.model,
        total_mib=Mib(wire.mib),
        reserved_mib=Mib(wire.reserved_mib),
        slots=wire.slots,
        limits_mib=Mib(wire.limits_mib),
        errors=wire.errors,
        health=health,
        health_reason=wire.reason,
        numa_node=wire.numa,
        links={CardUuid(uuid): distance for uuid, distance in wire.links.items()},
    )


def write_isolation(why_not: Mapping[str, str]) -> str:
    """Return the text of the annotation that says by what containers are limited.

    Args:
        why_not: by mechanism, why it limits no container on the node's cards; empty where it does.
    """
    return msgspec.json.encode(why_not, order="sorted").decode()


def read_isolation(text: str) -> Mapping[str, str]:
    """Parse what :func:`write_isolation` wrote; it is for people, so another text says nothing."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}
