"""The cards as lines: one for each card, for a terminal of some width or for a script; in MiB."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from cli.fleet import CardRow, Fleet
from cli.printers.cells import columns_of, fit, pad, safe
from cli.printers.text import Line, Tone, table_lines
from fracgpu import names

_HEAD: Final = ("NODE", "CARD", "MODEL", "HELD/MIB", "CORES", "BUSY", "STATE")
_GAP: Final = 2
_MOST_COLUMNS: Final = (24, 4, 20, 15, 5, 4, 9)
_LEAST_NODE: Final = 4
_PODS_BESIDE: Final = 36  # with fewer columns left, the pods are below their card
_INDENT: Final = "      "


def fleet_lines(fleet: Fleet, *, wide: bool = False) -> Iterator[Line]:
    """Yield the cards as a table whose columns a script can cut; nothing is left out."""
    head = (*_HEAD, "PODS", *(("FREE/MIB", "SLOTS", "UUID") if wide else ()))
    rows: list[tuple[str, ...]] = [head]
    tones = [Tone.HEAD]
    for node, card, trouble in _rows(fleet):
        row = _card_cells(node, card, trouble)
        more = _wide_cells(card) if wide else ()
        rows.append((*row, ",".join(_pods(card, joint="=")) or "-", *more))
        tones.append(_tone(card, trouble))
    yield from table_lines(rows, tones)


def fleet_screen(fleet: Fleet, *, width: int, wide: bool = False) -> Iterator[Line]:
    """Yield the cards for a terminal of *width* columns; what is too long is cut, with a mark.

    The pods stand beside their card where there is room, else below it; if *wide*, each on a line
    of its own, with the card's UUID. What keeps pods off a card is below it.
    """
    found = list(_rows(fleet))
    rows = [_screen_cells(*row) for row in found]
    limits = _limits([_HEAD, *rows], width)
    left = width - sum(limits) - _GAP * len(limits)
    beside = not wide and left >= _PODS_BESIDE
    yield Line(text=_row((*_HEAD, "PODS" if beside else ""), (*limits, left)), tone=Tone.HEAD)
    for (_, card, trouble), cells in zip(found, rows, strict=True):
        pods = _some(_pods(card, joint=" "), left) if beside else ""
        yield Line(text=_row((*cells, pods), (*limits, left)), tone=_tone(card, trouble))
        room = width - len(_INDENT)
        for line in _below(card, trouble, wide=wide, room=0 if beside else room):
            yield replace(line, text=_INDENT + fit(line.text, room))
    yield Line(text=fit(_sum_up(fleet), width), tone=Tone.HEAD)


def _rows(fleet: Fleet) -> Iterator[tuple[str, CardRow | None, str]]:
    """Yield node, card and what is wrong; a node without cards has one row."""
    for node in fleet.nodes:
        if not node.cards:
            yield node.name, None, node.trouble or "no cards"
        for card in node.cards:
            yield node.name, card, card.trouble or node.trouble


def _card_cells(node: str, card: CardRow | None, trouble: str) -> tuple[str, ...]:
    """Return the cells of a row for a script: all of the texts."""
    if card is None:
        return (node, "-", "-", "-", "-", "-", trouble)
    others = f"(+{card.foreign_mib} foreign)" if card.foreign_mib else ""
    held = f"{card.held_mib}{others}/{card.capacity_mib}"
    return (node, str(card.index), card.model, held, *_load(card), trouble or "ok")


def _screen_cells(node: str, card: CardRow | None, trouble: str) -> tuple[str, ...]:
    """Return the cells of a row for a terminal: words only, the texts are below."""
    if card is None:
        return (safe(node), "-", "-", "-", "-", "-", "no cards")
    model = safe(card.model).removeprefix("NVIDIA ").removeprefix("NVIDIA-")
    held = f"{card.held_mib}/{card.capacity_mib}"
    return (safe(node), str(card.index), model, held, *_load(card), _state(trouble))


def _load(card: CardRow) -> tuple[str, str]:
    return f"{card.held_cores}%", "-" if card.heat is None else f"{card.heat:.0%}"


def _state(trouble: str) -> str:
    """Return one word for what keeps new pods off a card."""
    if not trouble:
        return "ok"
    words = ("unhealthy", "drained", "cordoned", "avoided")
    return next((word for word in words if trouble.startswith(word)), "closed")


def _wide_cells(card: CardRow | None) -> tuple[str, ...]:
    if card is None:
        return ("-", "-", "-")
    return (str(card.free_mib), f"{card.held_slots}/{card.slots}", safe(card.uuid))


def _limits(rows: Sequence[tuple[str, ...]], width: int) -> tuple[int, ...]:
    """Return the columns of each cell; where *width* is too small, the node's name is cut."""
    columns = [
        min(most, max(columns_of(row[at]) for row in rows)) for at, most in enumerate(_MOST_COLUMNS)
    ]
    over = sum(columns) + _GAP * (len(columns) - 1) - width
    columns[0] = max(_LEAST_NODE, columns[0] - max(over, 0))
    return tuple(columns)


def _row(cells: Sequence[str], limits: Sequence[int]) -> str:
    shown = (pad(fit(cell, room), room) for cell, room in zip(cells, limits, strict=False))
    return (" " * _GAP).join(shown).rstrip()


def _below(card: CardRow | None, trouble: str, *, wide: bool, room: int) -> Iterator[Line]:
    """Yield what is below a card; its pods only where there is *room* for them."""
    if trouble:
        yield Line(text=safe(trouble), tone=_tone(card, trouble))
    if card is None:
        return
    if card.foreign_mib:
        yield Line(text=f"{card.foreign_mib} MiB used by other processes", tone=Tone.QUIET)
    if wide:
        free = f"{safe(card.uuid)}, {card.free_mib} MiB free, {card.held_slots}/{card.slots} slots"
        yield Line(text=free, tone=Tone.QUIET)
        for slice_ in card.slices:
            cores = f", {slice_.cores}% of the compute" if slice_.cores else ""
            ends = ", terminating" if slice_.terminating else ""
            yield Line(text=f"{safe(slice_.pod)} {slice_.size} MiB{cores}{ends}")
    elif room and card.slices:
        yield Line(text=_some(_pods(card, joint=" "), room))


def _pods(card: CardRow | None, *, joint: str) -> list[str]:
    return [f"{safe(slice_.pod)}{joint}{slice_.size}" for slice_ in (card.slices if card else ())]


def _some(words: Sequence[str], room: int) -> str:
    """Return as many words as fit, the first one cut if it must be, and how many there are more."""
    for count in range(len(words), 0, -1):
        more = len(words) - count
        text = ", ".join(words[:count]) + (f" +{more}" if more else "")
        if columns_of(text) <= room:
            return text
    if not words:
        return ""
    more_text = f" +{len(words) - 1}" if len(words) > 1 else ""
    return fit(words[0], room - len(more_text)) + more_text


def _sum_up(fleet: Fleet) -> str:
    ratio = fleet.held_mib / fleet.capacity_mib if fleet.capacity_mib else 0.0
    cards = "1 card" if fleet.cards == 1 else f"{fleet.cards} cards"
    listed = [safe(node.name) for node in fleet.nodes if node.identity == names.IDENTITY_LISTED]
    some = f"; without NRI: {', '.join(listed)}" if listed else ""
    return f"{cards}, {fleet.held_mib} of {fleet.capacity_mib} MiB held ({ratio:.0%}){some}"


def _tone(card: CardRow | None, trouble: str) -> Tone:
    if card is None:
        return Tone.QUIET
    return Tone.BAD if trouble else Tone.PLAIN
