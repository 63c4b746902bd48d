"""A share that is resized while its pod runs: what is asked for, what is granted, what counts.

Three annotations say how far a resize has come: people ask for a size (``fracgpu.io/resize``), the
leading scheduler grants or refuses it (``fracgpu.io/resized``), and the node's agent confirms what
it has applied and read back (``fracgpu.io/applied``). Until it has, either size may be the limit:
so the larger one counts, and a card is never promised twice, whoever crashes in between.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.errors import RequestError, WireError, decode_wire
from fracgpu.request.need import Isolation
from fracgpu.state.allocation import (
    Assignment,
    Resize,
    by_slice,
    places,
    read_assignment,
    sizes,
    write_assignment,
)
from fracgpu.units import Mib, parse_memory_mib


class _WireResize(msgspec.Struct, omit_defaults=True):
    asked: str
    granted: msgspec.Raw
    refused: str = ""


_decoder: Final = msgspec.json.Decoder(_WireResize)
_encoder: Final = msgspec.json.Encoder()


def read_resize(assigned: Assignment, *, resized: str, applied: str | None) -> Resize:
    """Return what the annotations of scheduler and agent say.

    Args:
        assigned: what the Binding assigned.
        resized: ``fracgpu.io/resized``.
        applied: ``fracgpu.io/applied``, or None before the agent has confirmed any.

    Raises:
        WireError: one of them cannot be read, or is about other containers or cards.
    """
    wire = decode_wire(_decoder.decode, resized, what=names.RESIZED)
    granted = read_assignment(bytes(wire.granted).decode())
    stands = assigned if applied is None else read_assignment(applied)
    for found in (granted, stands):
        if places(found) != places(assigned):
            raise WireError(what=names.RESIZED, message="other cards than the pod is assigned")
    return Resize(
        asked=wire.asked,
        refused=wire.refused,
        assigned=assigned,
        granted=granted,
        applied=stands,
    )


def write_resize(asked: str, granted: Assignment, *, refused: str = "") -> str:
    """Return ``fracgpu.io/resized``."""
    raw = msgspec.Raw(write_assignment(granted).encode())
    return _encoder.encode(_WireResize(asked=asked, granted=raw, refused=refused)).decode()


def is_answered(asked: str, resized: str | None) -> bool:
    """Report whether the size that a pod asks for has been granted or refused."""
    if resized is None:
        return False
    try:
        return decode_wire(_decoder.decode, resized, what=names.RESIZED).asked == asked
    except WireError:
        return True  # nothing is granted on top of what cannot be read


@dataclass(frozen=True, slots=True)
class Granted:
    """Each slice gets this size."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Refused:
    """The size is refused, for good."""

    why: str


@dataclass(frozen=True, slots=True)
class Pending:
    """It cannot be decided yet."""

    why: str


Answer = Granted | Refused | Pending


def answer(
    asked: str,
    assigned: Assignment,
    before: Resize | None,
    *,
    isolation: Mapping[str, str] | None,
    free_mib: Callable[[CardUuid, bool], Mib | None],
) -> Answer:
    """Decide about a resize.

    Args:
        asked: the size that each of the pod's slices should have.
        assigned: what the Binding assigned.
        before: what earlier resizes have come to; None if there were none.
        isolation: what limits each container, as the agent says; None if it has not said it yet.
        free_mib: how much of a card nobody holds, by what is guaranteed and, if the pod's limit
            becomes larger too, by limits; None if it takes no new slices.
    """
    try:
        mib = parse_memory_mib(asked, field=names.RESIZE)
    except RequestError as error:
        return Refused(str(error))
    if (problem := _not_resizable(assigned, isolation)) is not None:
        return problem
    (container,) = assigned
    wanted = {container: tuple(replace(part, mib=mib) for part in assigned[container])}
    own_limit_mib = min(part.own_limit_mib for part in assigned[container])
    if mib > (own_limit_mib or mib):
        return Refused(f"more than the {own_limit_mib}Mi that the pod may use at most")

    def left(card: CardUuid) -> Mib | None:
        return free_mib(card, not own_limit_mib)

    if before is None:
        return _within(wanted, assigned, left)
    if _falls(before, wanted):
        return Pending("the node has not confirmed the last resize")
    return _within(by_slice(wanted, before.applied, max), before.counts, left, wanted)


def isolation_of(annotations: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what limits each container that has started, as the agent wrote it; None if unread."""
    try:
        wired = json.loads(annotations.get(names.WIRED, ""))
        return {name: str(got["isolation"]) for name, got in wired.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _not_resizable(
    assigned: Assignment, isolation: Mapping[str, str] | None
) -> Refused | Pending | None:
    if len(assigned) != 1:
        return Refused("only a pod of which one container has cards can be resized")
    (container,) = assigned
    limited = (isolation or {}).get(container)
    if limited is None:
        return Pending("its container has not started")
    if limited != Isolation.KERNEL.value:
        why = f"neither driver nor kernel limit it ({names.WIRED} says {limited or 'none'})"
        return Refused(why)
    return None


def _falls(before: Resize, wanted: Assignment) -> bool:
    """Report whether less would count than what the node may have applied without saying it."""
    granted, applied, new = (sizes(each) for each in (before.granted, before.applied, wanted))
    return any(mib > applied[place] and new[place] < mib for place, mib in granted.items())


def _within(
    counts: Assignment,
    held: Assignment,
    free_mib: Callable[[CardUuid], Mib | None],
    wanted: Assignment | None = None,
) -> Answer:
    now, later = sizes(held), sizes(counts)
    most: int | None = None
    for place, mib in later.items():
        if mib <= now[place]:
            continue
        card = place[1]
        left = free_mib(card)
        if left is None:
            return Refused(f"card {card} takes no new slices")
        if mib - now[place] > left:
            fits = now[place] + max(0, left)
            most = fits if most is None else min(most, fits)
    if most is not None:
        return Refused(f"at most {most}Mi fit on the pod's card now")
    return Granted(wanted if wanted is not None else counts)
