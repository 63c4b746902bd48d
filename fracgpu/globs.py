"""Globs over short names, matched in time that grows with the name's length alone."""

from collections.abc import Iterable, Iterator
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
    return any_glob_matches(text, (glob,))


def any_glob_matches(text: str, globs: tuple[str, ...]) -> bool:
    """Tell whether one of *globs* matches the whole of *text*, as :func:`glob_matches` says.

    The text is walked once, however many globs there are.
    """
    return _program(globs).matches(text)


def is_glob(text: str) -> bool:
    """Tell whether there is a wildcard in *text*: without one it stands for itself."""
    return any(it in text for it in "*?[")


class _Chars(str):
    """What stands between brackets."""

    __slots__ = ()


class _Named:
    """Places by the characters that lead from them to the next."""

    def __init__(self) -> None:
        self._singles: dict[str, list[int]] = {}
        self._ranges: dict[tuple[str, str], int] = {}

    def add(self, chars: str, place: int) -> None:
        at = 0
        while at < len(chars):
            if chars[at + 1 : at + 2] == "-" and at + 2 < len(chars):
                ends = (chars[at], chars[at + 2])
                self._ranges[ends] = self._ranges.get(ends, 0) | 1 << place
                at += 3
            else:
                self._singles.setdefault(chars[at], []).append(place)
                at += 1

    def places(self, char: str) -> int:
        found = 0
        for place in self._singles.get(char, ()):
            found |= 1 << place
        for (low, high), places in self._ranges.items():
            if low <= char <= high:
                found |= places
        return found


class _Program:
    """Globs as numbers with one bit for each place between their pieces, glob after glob.

    All places that the globs may have reached are one such number, so a character costs one step
    whatever the globs say, and nothing is ever tried a second time.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        self._these = _Named()
        self._but_these = _Named()
        self._any = 0
        self._stays = 0
        self._starts = 0
        self._ends = 0
        self._takes: dict[str, int] = {}  # what was asked of the above before
        # Most globs are a name or a part of one, and need no such numbers.
        self._names: set[str] = set()
        self._parts: list[str] = []
        here = 0
        for glob in globs:
            if len(glob) > MAX_GLOB_CHARS:
                continue
            if not is_glob(glob):
                self._names.add(glob)
            elif glob[0] == glob[-1] == "*" and not is_glob(glob[1:-1]):
                self._parts.append(glob[1:-1])
            else:
                # Nothing leads from the end of one glob to the start of the next.
                here = self._add(glob, here) + 1

    def _add(self, glob: str, here: int) -> int:
        """Lay a glob out from place *here* on, and give the place of its end."""
        self._starts |= 1 << here
        for piece in _pieces(glob):
            if piece == "*":
                self._stays |= 1 << here
                continue
            if piece == "?":
                self._any |= 1 << here
            elif not isinstance(piece, _Chars):
                self._these.add(piece[-1], here)
            elif piece.startswith("!"):
                self._any |= 1 << here
                self._but_these.add(piece[1:], here)
            else:
                self._these.add(piece, here)
            here += 1
        self._ends |= 1 << here
        return here

    def matches(self, text: str) -> bool:
        if text in self._names or any(it in text for it in self._parts):
            return True
        reached, stays, known = self._starts, self._stays, self._takes
        if not reached:
            return False
        for char in text:
            takes = known.get(char)
            if takes is None:
                takes = known[char] = self._taking(char)
            reached = (reached & takes) << 1 | reached & stays
            if not reached:
                return False
        return bool(reached & self._ends)

    def _taking(self, char: str) -> int:
        """Give the places from which *char* leads to the next."""
        return self._any & ~self._but_these.places(char) | self._these.places(char)


# A hostile one takes a megabyte, and what it tells of each name is kept elsewhere.
@lru_cache(maxsize=16)
def _program(globs: tuple[str, ...]) -> _Program:
    return _Program(globs)


def _pieces(glob: str) -> Iterator[str]:
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
