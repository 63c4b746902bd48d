"""Globs over short names, matched in time that grows with the name's length alone."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

# A label's value has at most 63 characters, and NVML names a card in at most 96
# (NVML_DEVICE_NAME_V2_BUFFER_SIZE in nvml.h); what is longer names neither.
MAX_GLOB_CHARS: Final = 96


def glob_matches(text: str, glob: str) -> bool:
    """Tell whether *glob* matches the whole of *text*; capitals count.

    ``*`` stands for any characters or none, ``?`` for one, ``[a-c]`` for one of these and
    ``[!a-c]`` for one of the others, as in the standard library's :mod:`fnmatch`. A ``[`` that
    nothing closes stands for itself, and a range that runs backwards for no character. A glob
    longer than :data:`MAX_GLOB_CHARS` matches nothing.
    """
    return len(glob) <= MAX_GLOB_CHARS and _program(glob).matches(text)


class _Chars:
    """What stands between brackets."""

    def __init__(self, inside: str) -> None:
        self._others = inside.startswith("!")
        rest = inside[1:] if self._others else inside
        self._singles: set[str] = set()
        self._ranges: list[tuple[str, str]] = []
        at = 0
        while at < len(rest):
            if rest[at + 1 : at + 2] == "-" and at + 2 < len(rest):
                self._ranges.append((rest[at], rest[at + 2]))
                at += 3
            else:
                self._singles.add(rest[at])
                at += 1

    def __contains__(self, char: str) -> bool:
        named = char in self._singles or any(low <= char <= high for low, high in self._ranges)
        return named is not self._others


class _Program:
    """A glob as numbers with one bit for each place between its pieces.

    All places that the glob may have reached are one such number, so a character costs one step
    whatever the glob says, and nothing is ever tried a second time.
    """

    def __init__(self, glob: str) -> None:
        self._literals: dict[str, int] = {}
        self._sets: list[tuple[_Chars, int]] = []
        self._any = 0
        self._stays = 0
        self._takes: dict[str, int] = {}  # what was asked of the above before
        here = 1
        for piece in _pieces(glob):
            if piece == "*":
                self._stays |= here
                continue
            if isinstance(piece, _Chars):
                self._sets.append((piece, here))
            elif piece == "?":
                self._any |= here
            else:
                self._literals[piece[-1]] = self._literals.get(piece[-1], 0) | here
            here <<= 1
        self._end = here

    def matches(self, text: str) -> bool:
        reached = 1
        for char in text:
            takes = self._takes.get(char)
            if takes is None:
                takes = self._takes[char] = self._taking(char)
            reached = (reached & takes) << 1 | reached & self._stays
            if not reached:
                return False
        return bool(reached & self._end)

    def _taking(self, char: str) -> int:
        """Give the places from which *char* leads to the next."""
        places = self._any | self._literals.get(char, 0)
        for chars, place in self._sets:
            if char in chars:
                places |= place
        return places


@lru_cache(maxsize=512)
def _program(glob: str) -> _Program:
    return _Program(glob)


def _pieces(glob: str) -> Iterator[str | _Chars]:
    r"""Split a glob into ``*``, ``?``, sets, and characters that stand for themselves.

    The latter come with a backslash before them, so that they are no wildcards.
    """
    closing = glob.rfind("]")
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "[" and at < closing:
            inside = at + 1 if glob[at] == "!" else at
            close = glob.find("]", inside + 1)  # one that comes first is a member
            if close >= 0:
                yield _Chars(glob[at:close])
                at = close + 1
                continue
        yield char if char in "*?" else f"\\{char}"
