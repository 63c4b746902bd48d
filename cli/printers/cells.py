"""Text for a terminal: without characters that would steer it, and cut by the columns it takes."""

import unicodedata
from typing import Final

from rich.cells import cell_len, set_cell_size

_MARK: Final = "…"
# Control characters, formatting characters such as bidirectional overrides, lone surrogates, and
# line and paragraph separators.
_STEERING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str) -> str:
    """Return *text* with every character that steers a terminal written as its code point."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"<U+{ord(char):04X}>" if unicodedata.category(char) in _STEERING else char for char in text
    )


def columns_of(text: str) -> int:
    """Return how many columns *text* takes; a wide character takes two."""
    return cell_len(text)


def fit(text: str, columns: int) -> str:
    """Return *text* cut to at most *columns*, with a mark where something was left out."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, max(columns - 1, 0)).rstrip() + _MARK if columns > 0 else ""


def wrap(text: str, columns: int, *, indent: int) -> list[str]:
    """Return *text* in lines of at most *columns*, broken at spaces; all but the first indented.

    A word that is longer than a line stays whole.
    """
    lines, start = [], 0
    while cell_len(text) > columns:
        spaces = [at for at in range(start + 1, len(text)) if text[at] == " "]
        room = [at for at in spaces if cell_len(text[:at]) <= columns]
        if not spaces or not text[: spaces[-1]].strip():
            break
        at = room[-1] if room and text[: room[-1]].strip() else spaces[0]
        lines.append(text[:at].rstrip())
        text = " " * indent + text[at:].lstrip()
        start = indent
    return [*lines, text]


def pad(text: str, columns: int) -> str:
    """Return *text* filled with spaces to *columns*."""
    return text + " " * (columns - cell_len(text))
