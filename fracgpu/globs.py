"""Globs over short names, matched in time that depends on the length of the name alone."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

# A label's value has at most 63 characters, and NVML names a card in at most 96
# (NVML_DEVICE_NAME_V2_BUFFER_SIZE in nvml.h), so a longer glob can match neither.
MAX_GLOB_CHARS: Final = 96

_NOTHING: Final = r"[^\x00-\x{10FFFF}]"  # in RE2's syntax


def any_glob_matches(text: str, globs: tuple[str, ...]) -> bool:
    """Report whether one of *globs* matches the whole of *text*, case-sensitively.

    ``*`` matches any number of characters, ``?`` exactly one, ``[a-c]`` one of the set and
    ``[!a-c]`` one outside it, as in the standard library's :mod:`fnmatch`. An unclosed ``[``
    matches itself, and a reversed range such as ``[c-a]`` nothing. A glob longer than
    :data:`MAX_GLOB_CHARS` matches nothing.

    The text is scanned once, however many globs there are.
    """
    return _program(globs).matches(text)


def any_glob_covers(glob: str, globs: tuple[str, ...]) -> bool:
    """Report whether one of *globs* matches every text that *glob* matches.

    A yes is certain. What one of *globs* only covers together with another, or by a case
    distinction, is missed.
    """
    return _program(globs).covers(glob)


def any_glob_overlaps(glob: str, globs: tuple[str, ...]) -> bool:
    """Report whether one of *globs* matches some text that *glob* matches, too."""
    return _program(globs).overlaps(glob)


def is_glob(text: str) -> bool:
    """Report whether *text* contains a wildcard; without one it matches only itself."""
    return any(char in text for char in "*?[")


def as_regex(glob: str) -> str:
    """Return the regular expression (RE2's syntax) that matches what *glob* does."""
    return "".join(map(_piece_as_regex, _pieces(glob)))


class _Chars(str):
    """The contents of a bracket expression."""

    __slots__ = ()


class _Transitions:
    """The states that each character advances, as a bit mask with one bit for each state."""

    def __init__(self) -> None:
        self._singles: dict[str, list[int]] = {}
        self._ranges: dict[tuple[str, str], int] = {}

    def add(self, chars: str, state: int) -> None:
        at = 0
        while at < len(chars):
            if chars[at + 1 : at + 2] == "-" and at + 2 < len(chars):
                ends = (chars[at], chars[at + 2])
                self._ranges[ends] = self._ranges.get(ends, 0) | 1 << state
                at += 3
            else:
                self._singles.setdefault(chars[at], []).append(state)
                at += 1

    def mask(self, char: str) -> int:
        found = 0
        for state in self._singles.get(char, ()):
            found |= 1 << state
        for (low, high), states in self._ranges.items():
            if low <= char <= high:
                found |= states
        return found


class _Program:
    """Globs compiled to one non-deterministic automaton whose state set is an integer.

    Each position between two pieces of a glob is a state and has one bit; the globs follow one
    another in the same integer, which has about 1,000 bits for the most that a pod may write
    (:data:`fracgpu.request.bounds.MAX_GLOBS_CHARS`). The set of reachable states is advanced for
    all globs at once with two ands, a shift and an or for each character of the text (the
    bit-parallel "shift-and" algorithm), so there is no backtracking and no glob takes exponential
    time.

    ``_starts`` and ``_ends`` are the first and last state of each glob; a state in ``_stays`` has a
    ``*`` and loops on every character; ``_these``, ``_but_these`` and ``_any`` say which characters
    advance a state to the next bit. ``_takes`` caches the mask of states that a character advances.

    Args:
        globs: in any order.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        self._these = _Transitions()
        self._but_these = _Transitions()
        self._any = 0
        self._stays = 0
        self._starts = 0
        self._ends = 0
        self._takes: dict[str, int] = {}
        state = 0
        for glob in globs:
            if len(glob) <= MAX_GLOB_CHARS:
                # The end of one glob has no transition to the start of the next.
                state = self._add(glob, state) + 1

    def _add(self, glob: str, state: int) -> int:
        """Add a glob whose first state is *state*, and return its last."""
        self._starts |= 1 << state
        for piece in _pieces(glob):
            if piece == "*":
                self._stays |= 1 << state
                continue
            if piece == "?":
                self._any |= 1 << state
            elif not isinstance(piece, _Chars):
                self._these.add(piece[-1], state)
            elif piece.startswith("!"):
                self._any |= 1 << state
                self._but_these.add(piece[1:], state)
            else:
                self._these.add(piece, state)
            state += 1
        self._ends |= 1 << state
        return state

    def matches(self, text: str) -> bool:
        reached, stays, known = self._starts, self._stays, self._takes
        for char in text:
            takes = known.get(char)
            if takes is None:
                takes = known[char] = self._taking(char)
            reached = (reached & takes) << 1 | reached & stays
            if not reached:
                return False
        return bool(reached & self._ends)

    def covers(self, glob: str) -> bool:
        """Report whether one glob matches all that another one does."""
        reached = self._starts
        for piece in _pieces(glob):
            # Only a "*" takes a "*", and only what takes every character a "?".
            takes = 0
            if piece != "*":
                takes = ~0
                for char in _chars_of(piece):
                    takes &= self._taking(char)
                if piece == "?" or piece.startswith("!"):
                    takes &= self._any
            reached = (reached & takes) << 1 | reached & self._stays
        return bool(reached & self._ends)

    def overlaps(self, glob: str) -> bool:
        """Report whether one glob matches something that another one matches as well."""
        reached = self._starts
        for piece in _pieces(glob):
            if piece == "*":
                more = 0
                while more != reached:
                    more, reached = reached, reached | (reached & ~self._ends) << 1
                continue
            takes = 0
            for char in _chars_of(piece):
                takes |= self._taking(char)
            reached = (reached & takes) << 1 | reached & self._stays
        return bool(reached & self._ends)

    def _taking(self, char: str) -> int:
        """Return the states that *char* advances, as a bit mask."""
        return self._any & ~self._but_these.mask(char) | self._these.mask(char)


# A hostile program takes a megabyte with its cached masks, so few are kept; the answers for single
# names are cached by the callers.
@lru_cache(maxsize=16)
def _program(globs: tuple[str, ...]) -> _Program:
    return _Program(globs)


# Of a set and of "?": names of cards are in ASCII.
_ASCII: Final = tuple(map(chr, range(33, 127)))


@lru_cache(maxsize=256)
def _chars_of(piece: str) -> tuple[str, ...]:
    """Return the characters that a piece other than ``*`` matches."""
    if piece == "?":
        return _ASCII
    if not isinstance(piece, _Chars):
        return (piece[-1],)
    one = _Program((f"[{piece}]",))
    return tuple(char for char in dict.fromkeys((*_ASCII, *piece)) if one.matches(char))


def _piece_as_regex(piece: str) -> str:
    if piece in ("*", "?"):
        return ".*" if piece == "*" else "."
    if not isinstance(piece, _Chars):
        return re.escape(piece[-1])
    negated = piece.startswith("!")
    chars = "".join(map(re.escape, _chars_of(_Chars(piece[1:]) if negated else piece)))
    if not chars:
        return "." if negated else _NOTHING
    return f"[{'^' if negated else ''}{chars}]"


def _pieces(glob: str) -> Iterator[str]:
    r"""Yield the pieces of a glob: ``*``, ``?``, sets and literal characters.

    Literal characters have a backslash before them, so that they are not taken for wildcards.
    """
    closing = glob.rfind("]")
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "[" and at < closing:
            inside = at + 1 if glob[at] == "!" else at
            close = glob.find("]", inside + 1)  # a "]" that comes first is a member
            if close >= 0:
                yield _Chars(glob[at:close])
                at = close + 1
                continue
        yield char if char in "*?" else f"\\{char}"
