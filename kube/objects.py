"""The few fields of Kubernetes objects that this package reads, strictly decoded.

A list of 20,000 pods must stay cheap, so items stay raw JSON until their user decodes them;
the generated models of kubernetes-asyncio are never built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

Raw = msgspec.Raw
_T = TypeVar("_T")


_LEVELS: Final = 64
_SPARE: Final = (b"[" * 500, b"]" * 500)  # how deep the stack may be when a part of it is decoded
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB]%(hex)s\\u[dD][c-fC-F]%(hex)s|(?P<half>u[dD][89a-fA-F]%(hex)s)|.)"
    % {b"hex": rb"[0-9a-fA-F]{2}"},
    re.DOTALL,
)
# It matches all that there is, so that no body is searched twice: one without an end either.
_BRACKETS: Final = re.compile(
    rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)*+([{}\[\]])?', re.DOTALL
)


class ObjectKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """Identifies an object within its kind; the namespace is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of ``metadata`` that identifies one version of one object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.namespace, self.name)


class Identified(msgspec.Struct, frozen=True, gc=False):
    """Any object, decoded only as far as its identity."""

    metadata: ObjectMeta


class ListMeta(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion"}):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class RawList(msgspec.Struct, frozen=True):
    """One page of a list, its items undecoded. ``items: null`` is how Go writes an empty one."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchFrame(msgspec.Struct, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class StatusCause(msgspec.Struct, frozen=True):
    """One entry of ``Status.details.causes`` (the JSON calls its type ``reason``)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """``Status.details``."""

    causes: list[StatusCause] | None = None
    retry_after_seconds: float = 0


class Status(msgspec.Struct, frozen=True):
    """``meta/v1 Status``: the API server's error answer."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class VersionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """``version.Info``: the answer to ``/version``."""

    git_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectList:
    """An entire list, all its pages, as of one resourceVersion."""

    resource_version: str
    items: list[msgspec.Raw]


def readable(body: bytes) -> bytes:
    """Return what the API server sent, such that decoders, which recurse, read all parts of it.

    The API server gives back what users wrote into a pod's ``managedFields`` or a claim's
    parameters for another driver: ten thousand levels, halves of surrogate pairs, and bytes that
    are no UTF-8. In such an object null stands for what is nested more than 64 levels deep, where
    nothing is that we read, and U+FFFD for what is no character.
    """
    try:
        msgspec.json.decode(b"".join((_SPARE[0], body, _SPARE[1])), type=msgspec.Raw)
        if not body.isascii():
            body.decode()
    except (ValueError, RecursionError):
        return _ESCAPES.sub(_readable_escape, _shallow(body.decode(errors="replace").encode()))
    return body


def _readable_escape(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["half"] else escape[0]


def _shallow(body: bytes) -> bytes:
    kept, depth, begin = bytearray(), 0, 0
    for found in _BRACKETS.finditer(body):
        if found[1] in (b"{", b"["):
            depth += 1
            if depth == _LEVELS + 1:
                kept += body[begin : found.start(1)] + b"null"
                begin = len(body)
        elif found[1]:
            depth -= 1
            if depth == _LEVELS:
                begin = found.end()
    return bytes(kept + body[begin:])


def decode(body: bytes | msgspec.Raw, wanted: type[_T]) -> _T:
    """Decode JSON to *wanted*.

    Raises:
        ValueError: it is not JSON, or does not fit *wanted*.
    """
    return msgspec.json.decode(body, type=wanted)


def decode_object(body: bytes | msgspec.Raw) -> dict[str, Any]:
    """Decode one JSON object.

    Raises:
        ValueError: it is not a JSON object.
    """
    return msgspec.json.decode(body, type=dict[str, Any])


def encode(value: object) -> bytes:
    """Return *value* as compact JSON."""
    return msgspec.json.encode(value)


def identity(body: bytes | msgspec.Raw) -> ObjectMeta:
    """Return an object's metadata, without decoding the rest.

    Raises:
        ValueError: it is not an object with a name.
    """
    return msgspec.json.decode(body, type=Identified).metadata


def version_of(body: bytes | msgspec.Raw) -> str:
    """Return the resourceVersion of an object that may have no name, such as a bookmark's.

    Raises:
        ValueError: it is not an object with metadata.
    """
    return msgspec.json.decode(body, type=_Versioned).metadata.resource_version


class _Versioned(msgspec.Struct, frozen=True):
    metadata: ListMeta
