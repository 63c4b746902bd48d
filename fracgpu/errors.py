"""What the core may raise: a request that makes no sense, or bytes that are not what they claim."""


class FracgpuError(Exception):
    """Base of everything the core raises on purpose."""


class RequestError(FracgpuError):
    """A user asked for something that cannot be read or can never be satisfied.

    The message always has the same order, so that a user can act on it: which key, what was there,
    what was wanted, and the nearest thing that would work.

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
        message = f"{field} is {_shorten(found)!r}; want {wanted}"
        super().__init__(f"{message}; {hint}" if hint else message)


class WireError(FracgpuError, ValueError):
    """Bytes from another program are not of the form we agreed on."""

    def __init__(self, *, what: str, message: str) -> None:
        self.what = what
        super().__init__(f"{what}: {message}")


def _shorten(text: str, *, limit: int = 120) -> str:
    """Keep a hostile value from flooding a message that ends up in events and logs."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
