"""The few fields of Kubernetes objects that this package reads, strictly decoded.

A list of 20,000 pods must stay cheap, so items stay raw JSON until their user decodes them;
the generated models of kubernetes-asyncio are never built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

Raw = msgspec.Raw
_T = TypeVar("_T")


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
