"""What the core may raise: a request that makes no sense, or bytes that are not what they claim."""

from collections.abc import Iterable
from typing import Final

# An Event's note holds 1024 bytes (k8s.io/kubernetes pkg/apis/core/validation/events.go).
MOST_MESSAGE_BYTES: Final = 1000

# What a user wrote is repeated in at most 200 characters: a name or key, what was found there, and
# one more name.
_MOST_NAME: Final = 63
_MOST_FOUND: Final = 72
_MOST_FIELD: Final = 200
_MOST_WANTED: Final = 500


class FracgpuError(Exception):
    """Base of everything the core raises on purpose."""


class RequestError(FracgpuError):
    """A user asked for something that cannot be read or can never be satisfied.

    The message always has the same order, so that a user can act on it: which key, what was there,
    what was wanted, and the nearest thing that would work. It is never longer than
    :data:`MOST_MESSAGE_BYTES`, whatever the user wrote.

    Attributes:
        field: the key as the user wrote it, such as ``fracgpu.io/fraction``.
        found: what stood there.
        wanted: what would have been understood.
        hint: the nearest thing that would work, or an empty string.
    """

    def __init__(self, *, field: str, found: str, wanted: str, hint: str = "") -> None:
        self.field = field
        self.found = found
        self.wanted = wanted
        self.hint = hint
        message = f"{shorten(field, limit=_MOST_FIELD)} is {quoted(found)}; "
        message += f"want {shorten(wanted, limit=_MOST_WANTED)}"
        super().__init__(shorten_bytes(f"{message}; {hint}" if hint else message))


class WireError(FracgpuError, ValueError):
    """Bytes from another program are not of the form we agreed on."""

    def __init__(self, *, what: str, message: str) -> None:
        self.what = what
        super().__init__(shorten_bytes(f"{what}: {message}"))


def shorten(text: str, *, limit: int = _MOST_NAME) -> str:
    """Keep a hostile text from flooding a message that ends up in events and logs."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shorten_bytes(text: str, *, limit: int = MOST_MESSAGE_BYTES) -> str:
    """Cut a text to *limit* bytes of UTF-8; lone surrogates, which it cannot hold, become "?"."""
    body = text.encode(errors="replace")
    if len(body) <= limit:
        return body.decode()
    return body[: limit - len("…".encode())].decode(errors="ignore") + "…"


def quoted(text: str, *, limit: int = _MOST_FOUND) -> str:
    """Write a value in quotes, with what no terminal can show escaped, in *limit* characters."""
    written = repr(shorten(text, limit=limit))
    return written if len(written) <= limit + 2 else f"{written[:limit]}…{written[-1]}"


def listed(items: Iterable[str], *, limit: int = _MOST_NAME) -> str:
    """Join names with commas as far as *limit* characters go, and say how many more there are."""
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
