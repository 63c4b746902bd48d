"""Suggestions for misspelt words, found with bounded work."""

import difflib
from collections.abc import Collection, Iterable
from heapq import nsmallest
from typing import Final

from fracgpu.errors import shorten

MAX_WORD_CHARS: Final = 63  # a label value, a container name

# Comparing two words of 63 characters can take 2 ms, so the work is bounded by the characters of
# all candidates together: a few hostile long ones, or the many short ones of real configurations.
_MOST_CANDIDATE_CHARS: Final = 512

# An error repeats at most 200 characters of what a user wrote: a key or name of 63, a value of 72,
# a suggestion, and a list in what remains.
_MOST_SHOWN: Final = 40
_LIST_BESIDE_HINT: Final = 24

_MOST_NAMED: Final = 5  # of the unknown keys


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the word of *known* that is most similar to *word*; empty when none is similar enough.

    A word longer than :data:`MAX_WORD_CHARS` is no typing mistake: nothing is similar to it.

    Args:
        word: the word as the user wrote it.
        known: the accepted words, compared in this order.
        cutoff: the least similarity, 0..1.
    """
    if len(word) > MAX_WORD_CHARS:
        return ""
    candidates = []
    left = _MOST_CANDIDATE_CHARS
    for candidate in known:
        left -= len(candidate)
        if left < 0:
            break
        if len(candidate) <= MAX_WORD_CHARS:
            candidates.append(candidate)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    return close[0] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest of *known*; empty when there is none."""
    close = nearest(word, known)
    return f"did you mean '{shorten(close, limit=_MOST_SHOWN)}'?" if close else ""


def unknown_keys(keys: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a message for each key that is not *known*, with a suggestion where one is near.

    The first few are named in alphabetical order and the others are counted: a ConfigMap has room
    for tens of thousands.
    """
    unknown = [key for key in keys if key not in known]
    messages = []
    for key in nsmallest(_MOST_NAMED, unknown):
        near = nearest(key, known) or nearest(key.lower(), known)
        hint = f"; did you mean {near}?" if near else ""
        messages.append(f"{shorten(key)} is not a key here{hint}")
    more = len(unknown) - _MOST_NAMED
    return [*messages, f"{more} more keys are not known here either"] if more > 0 else messages


def room_for_list(hint: str) -> int:
    """Return how many characters a list of known words may take in an error with this hint."""
    return _LIST_BESIDE_HINT if hint else MAX_WORD_CHARS
