"""Kubernetes objects as plain JSON, and the few things everybody asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Json: TypeAlias = dict[str, Any]

_ENCODER = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """Write *value* as compact JSON."""
    return _ENCODER.encode(value)


def decode(body: bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: *body* is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def thaw(value: Json) -> Json:
    """Copy *value* deeply: stored objects are shared and must never be changed in place."""
    copy: Json = msgspec.json.decode(_ENCODER.encode(value))
    return copy


def metadata(value: Json) -> Json:
    """Return the object's metadata, made if it was missing, so that it may be written to."""
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        meta = value["metadata"] = {}
    return meta


def labels(value: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the labels of *value*; an object without any has none."""
    found = ((value or {}).get("metadata") or {}).get("labels") or {}
    return found if isinstance(found, dict) else {}


def format_time(moment: datetime) -> str:
    """Write *moment* (UTC) as metav1.Time does: whole seconds, ``Z``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def without_nulls(value: Any) -> Any:
    """Drop members that are null at any depth, as the typed decoding of the API server does."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
