"""Which compute units of a card a container may use, for cards that can be masked by them.

Sources: ROCm's documentation, "Set the number of compute units": ``HSA_CU_MASK`` is a list of sets
``GPU:CUs`` divided by ``;``, such as ``0:0-15,32-47;1:0-7``, where GPUs are numbered as the program
sees them, a set with an error ends the reading, and it "is not valid to disable only a single CU in
a WGP", which is two of them. The kernel spreads the bits of a mask over the shader engines in turn
(``mqd_symmetrically_map_cu_mask`` in ``kfd_mqd_manager.c``), so that neighbouring numbers are on
different engines, and a part of a card has its part of each.

The mask is a variable: a program can ignore or unset it. It keeps containers out of each other's
way; it does not hold them.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.cards.interface import CardHardware
from fracgpu.cards.card import FULL_CORES, CardUuid

Units = Mapping[CardUuid, frozenset[int]]
"""The numbers of a container's compute units, by card."""

# Units are handed out in twos: on some cards both have to be on or off.
_TOGETHER: Final = 2
# The most that any card has is below this; more is not one of our texts.
_MOST_UNITS: Final = 4096
_RANGE: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def choose_units(
    *, total: int, cores: int, taken: Iterable[frozenset[int]], first: int = 0
) -> frozenset[int]:
    """Return the units for *cores* per cent of a card: those that fewest containers have.

    Args:
        total: how many the card has.
        cores: per cent of its compute; rounded up to whole pairs.
        taken: the units of each container on the card.
        first: of those that equally few have, the pair from which on they are taken.
    """
    pairs = max(1, total // _TOGETHER)
    wanted = min(pairs, max(1, -(-total * cores // (FULL_CORES * _TOGETHER))))
    used = Counter(pair for units in taken for pair in {unit // _TOGETHER for unit in units})
    order = sorted(range(pairs), key=lambda pair: (used[pair], (pair - first) % pairs))
    chosen = {_TOGETHER * pair + each for pair in order[:wanted] for each in range(_TOGETHER)}
    return frozenset(unit for unit in chosen if unit < total)


def units_of(
    hardware: Sequence[CardHardware],
    cores: Mapping[CardUuid, int],
    *,
    taken: Iterable[Units] | None,
    holder: str,
) -> Units:
    """Return the units of a container on each card that can be masked and of which it asks a part.

    Args:
        hardware: its cards.
        cores: per cent of each card's compute; 0 where none was asked for.
        taken: the units of the node's containers; None where they are not known, and then
            containers begin at different units by chance.
        holder: names the container.
    """
    found: dict[CardUuid, frozenset[int]] = {}
    for each in hardware:
        uuid, total = each.card.uuid, each.compute_units
        if not total or not is_part(cores.get(uuid, 0)):
            continue
        found[uuid] = choose_units(
            total=total,
            cores=cores[uuid],
            taken=(units.get(uuid, frozenset()) for units in taken or ()),
            first=0 if taken is not None else _some_number(holder) % max(1, total // _TOGETHER),
        )
    return found


def is_part(cores: int) -> bool:
    """Report whether *cores* per cent are a part of a card's compute, and not shared freely."""
    return 0 < cores < FULL_CORES


def mask(hardware: Sequence[CardHardware], units: Units) -> str:
    """Return the value of ``HSA_CU_MASK`` of a container with the cards *hardware*."""
    visible = sorted(hardware, key=lambda each: each.card.index)
    return ";".join(
        f"{number}:{_ranges(units[each.card.uuid])}"
        for number, each in enumerate(visible)
        if each.card.uuid in units
    )


def write_units(units: Units) -> str:
    """Return the units as a text: ``AMD-1=0-15,32-47;AMD-2=0-7``."""
    return ";".join(f"{card}={_ranges(units[card])}" for card in sorted(units))


def read_units(text: str) -> Units:
    """Return what :func:`write_units` was given; what is not of its form is left out."""
    found: dict[CardUuid, frozenset[int]] = {}
    for part in text.split(";"):
        card, _, ranges = part.partition("=")
        numbers = _numbers(ranges)
        if card and numbers:
            found[CardUuid(card)] = numbers
    return found


def _some_number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def _ranges(units: frozenset[int]) -> str:
    parts: list[list[int]] = []
    for unit in sorted(units):
        if parts and unit == parts[-1][1] + 1:
            parts[-1][1] = unit
        else:
            parts.append([unit, unit])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def _numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return frozenset()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST_UNITS:
            return frozenset()
        found.update(range(first, last + 1))
    return frozenset(found)
