"""The errors of the core: invalid requests, and data that cannot be decoded."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

# An Event's note holds 1024 bytes (k8s.io/kubernetes pkg/apis/core/validation/events.go).
MOST_MESSAGE_BYTES: Final = 1000

# A message repeats at most 200 characters of what a user wrote: a key or name, the value found
# there, and one more name.
_MOST_NAME: Final = 63
_MOST_FOUND: Final = 72
MOST_FIELD: Final = 200
_MOST_WANTED: Final = 500

# The errors of decoding JSON: msgspec's own and invalid UTF-8 are ValueErrors, deeply nested input
# raises RecursionError, and a time near the first or last year may have none in UTC.
UNREADABLE: Final = (ValueError, RecursionError, OverflowError)

# What looks like a plain space, like nothing or like another character, such as a fullwidth digit,
# and is copied from documents and chats.
_MISTAKABLE: Final = re.compile(
    "[\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u205f\u2060\u3000\ufeff\uff01-\uff5e]|(?![0-9])\\d"
)

_Text = TypeVar("_Text")
_Decoded = TypeVar("_Decoded")


class FracgpuError(Exception):
    """Base class of the errors that the core raises."""


class PodField(str):
    """The place of a value in a pod as errors write it, with its parts.

    Args:
        key: of an annotation or a resource.
        container: the container's name; empty where the key counts for the whole pod.
        amounts: ``limits`` or ``requests`` if the key is a resource, else empty.
    """

    key: str
    container: str
    amounts: str

    def __new__(cls, key: str, *, container: str = "", amounts: str = "") -> "PodField":
        place = f"{amounts}['{shorten(key)}']" if amounts else key
        field = super().__new__(cls, f"{place} of container '{container}'" if container else place)
        field.key, field.container, field.amounts = key, container, amounts
        return field


class RequestError(FracgpuError):
    """A request that cannot be parsed or can never be satisfied.

    The message always has the same order, so that a user can act on it: the key, its value, what
    was wanted, and the nearest value that would work. It is never longer than
    :data:`MOST_MESSAGE_BYTES`, whatever the user wrote.

    Attributes:
        field: the key as the user wrote it, such as ``fracgpu.io/fraction``, and where.
        found: its value.
        wanted: the values that are accepted.
        hint: the nearest value that would work, or an empty string.
    """

    def __init__(self, *, field: str, found: str, wanted: str, hint: str = "") -> None:
        self.field = field if isinstance(field, PodField) else PodField(field)
        self.found = found
        self.wanted = wanted
        self.hint = hint = _with_mistakable(found, hint)
        message = f"{shorten(field, limit=MOST_FIELD)} is {quoted(found)}; "
        message += f"want {shorten(wanted, limit=_MOST_WANTED)}"
        super().__init__(shorten_bytes(f"{message}; {hint}" if hint else message))


def _with_mistakable(found: str, hint: str) -> str:
    """Return a hint that names the first character of *found* that is not what it looks like."""
    match = _MISTAKABLE.search(found)
    if match is None:
        return hint
    name = unicodedata.name(match[0], "unnamed").lower()
    contains = f"it contains U+{ord(match[0]):04X} ({name}): type it anew"
    return hint if contains in hint else "; ".join(filter(None, (contains, hint)))


class WireError(FracgpuError, ValueError):
    """Data from another program that do not have the expected form."""

    def __init__(self, *, what: str, message: str) -> None:
        self.what = what
        super().__init__(shorten_bytes(f"{what}: {message}"))


def decode_wire(decode: Callable[[_Text], _Decoded], text: _Text, *, what: str) -> _Decoded:
    """Return what *decode* makes of *text*, which another program wrote.

    Raises:
        WireError: *decode* cannot read *text*; it names *what* should have been there.
    """
    try:
        return decode(text)
    except UNREADABLE as error:
        raise WireError(what=what, message=str(error)) from error


def shorten(text: str, *, limit: int = _MOST_NAME) -> str:
    """Return *text* cut to *limit* characters: hostile input must not flood Events and logs."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def counted(count: int, noun: str) -> str:
    """Return *count* with its noun, e.g. ``1 pod`` and ``2 pods``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shorten_bytes(text: str, *, limit: int = MOST_MESSAGE_BYTES) -> str:
    """Return *text* cut to *limit* bytes of UTF-8; lone surrogates become "?"."""
    body = text.encode(errors="replace")
    if len(body) <= limit:
        return body.decode()
    return body[: limit - len("…".encode())].decode(errors="ignore") + "…"


def quoted(text: str, *, limit: int = _MOST_FOUND) -> str:
    """Return a value in quotes, unprintable characters escaped, in at most *limit* characters."""
    written = repr(shorten(text, limit=limit))
    return written if len(written) <= limit + 2 else f"{written[:limit]}…{written[-1]}"


def listed(items: Iterable[str], *, limit: int = _MOST_NAME) -> str:
    """Return names joined with commas, at most *limit* characters, and the number of the others."""
    shown: list[str] = []
    left = limit
    more = 0
    for item in items:
        left -= len(item)
        if more or (shown and left < 0):
            more += 1
        else:
            shown.append(shorten(item, limit=limit))
    text = ", ".join(shown)
    return f"{text} and {more} more" if more else text
