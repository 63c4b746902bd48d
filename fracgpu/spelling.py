"""The known word nearest to a misspelt one, found with bounded work."""

import difflib
from collections.abc import Collection, Iterable
from heapq import nsmallest
from typing import Final

from fracgpu.errors import shorten

MAX_WORD_CHARS: Final = 63  # of a label's value, and of a container's name

# One comparison of two words of 63 characters can take 2 ms, so hostile candidates are compared
# until so many of their characters have been looked at; natural ones are short and many.
_MOST_CANDIDATE_CHARS: Final = 512

# An error repeats at most 200 characters of what a user wrote: a key or name of 63, a value of 72,
# a suggestion, and what is left for a list.
_MOST_SHOWN: Final = 40
_LIST_BESIDE_HINT: Final = 24

_MOST_NAMED: Final = 5  # of keys that nobody knows


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Give the one of *known* that looks most like *word*; empty when none does.

    Words longer than :data:`MAX_WORD_CHARS` are nobody's slip: they resemble nothing.

    Args:
        word: as somebody wrote it.
        known: what would have been understood, in the order in which it is looked at.
        cutoff: how alike two words have to be, 0..1.
    """
    if len(word) > MAX_WORD_CHARS:
        return ""
    candidates = []
    left = _MOST_CANDIDATE_CHARS
    for it in known:
        left -= len(it)
        if left < 0:
            break
        if len(it) <= MAX_WORD_CHARS:
            candidates.append(it)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    return close[0] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Write a hint that names the nearest of *known*; empty when there is none."""
    close = nearest(word, known)
    return f"did you mean '{shorten(close, limit=_MOST_SHOWN)}'?" if close else ""


def unknown_keys(keys: Iterable[str], known: Collection[str]) -> list[str]:
    """Say of keys that are not *known* what they are not, and what was probably meant.

    The first few are named, in the order of the alphabet, and the others counted: a ConfigMap has
    room for tens of thousands.
    """
    unknown = [key for key in keys if key not in known]
    said = []
    for key in nsmallest(_MOST_NAMED, unknown):
        near = nearest(key, known) or nearest(key.lower(), known)
        hint = f"; did you mean {near}?" if near else ""
        said.append(f"{shorten(key)} is not a key here{hint}")
    more = len(unknown) - _MOST_NAMED
    return [*said, f"{more} more keys are not known here either"] if more > 0 else said


def room_for_list(hint: str) -> int:
    """Say how many characters of known words go into an error beside a hint, or without one."""
    return _LIST_BESIDE_HINT if hint else MAX_WORD_CHARS
