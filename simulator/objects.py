"""Kubernetes objects as plain JSON, and common access to their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Json: TypeAlias = dict[str, Any]

# Of a ResourceClaim that is allocated: kube-scheduler sets it, the controller removes it.
CLAIM_FINALIZER: Final = "resource.kubernetes.io/delete-protection"

_ENCODER = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """Return *value* as compact JSON."""
    return _ENCODER.encode(value)


def decode(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: *body* is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def thaw(value: Json) -> Json:
    """Return a deep copy of *value*: stored objects are shared and must not be changed in place."""
    copy: Json = msgspec.json.decode(_ENCODER.encode(value))
    return copy


def metadata(value: Json) -> Json:
    """Return the object's metadata, for writing; it is created if missing."""
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        meta = value["metadata"] = {}
    return meta


def labels(value: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the labels of *value*; an object without any has none."""
    found = ((value or {}).get("metadata") or {}).get("labels") or {}
    return found if isinstance(found, dict) else {}


def format_time(moment: datetime) -> str:
    """Return *moment* (UTC) in the form of metav1.Time: whole seconds, ``Z``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def without_nulls(value: Any) -> Any:
    """Return *value* without null members at any depth, as the API server decodes it."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
