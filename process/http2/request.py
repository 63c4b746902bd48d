"""A request over HTTP/2, who answers it, and what bounds both."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from process.telemetry import Answer


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its entire body.

    *path* is without its query, *accept* is the header of that name.
    """

    method: str
    path: str
    accept: str
    body: bytes


Answerer = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Limits that protect a server from its callers.

    Attributes:
        connections: at once; one more replaces one that has no request, or is closed.
        request_s: seconds from the head of a request to its last byte.
        answer_s: seconds in which a caller must take some of an answer.
    """

    connections: int = 64
    request_s: float = 10.0
    answer_s: float = 30.0


@dataclass(slots=True)
class Bodies:
    """The bytes of all connections' bodies that are read or answered.

    Attributes:
        largest: bytes of one body; a larger one is answered with 413.
        most: of all bodies together; one that does not fit now is answered with 503.
    """

    largest: int
    most: int
    held: int = 0
