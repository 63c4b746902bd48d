"""Conversion between stored objects and the versions served: Events have two groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery import resources
from simulator.objects import Json, encode

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Stored

# events.k8s.io/v1 -> core/v1, the form that is stored.
# Source: k8s.io/kubernetes pkg/apis/events/v1/conversion.go.
_EVENT_FIELDS: Final = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_TO_V1: Final = {core: v1 for v1, core in _EVENT_FIELDS.items()}


def encoded(resource: Resource, stored: Stored) -> bytes:
    """Return a stored object as JSON, with kind and apiVersion."""
    if resource is resources.EVENTS_V1:
        return encoded_value(resource, stored.object)
    return _opening(resource) + stored.encoded[1:]


def encoded_item(resource: Resource, stored: Stored) -> bytes:
    """Return a stored object as a list item in JSON: without kind and apiVersion.

    Items of custom resources have both, on the real server as well.
    """
    if resource.schema is not None:
        return encoded(resource, stored)
    if resource is resources.EVENTS_V1:
        return encode(_renamed(stored.object, _TO_V1))
    return stored.encoded


def encoded_value(resource: Resource, value: Json) -> bytes:
    """Return an object that is not (or not so) stored as JSON, with kind and apiVersion."""
    if resource is resources.EVENTS_V1:
        value = _renamed(value, _TO_V1)
    return _opening(resource) + encode(value)[1:]


def to_storage(resource: Resource, value: Json) -> Json:
    """Convert what a client sent for *resource* to the stored form."""
    return _renamed(value, _EVENT_FIELDS) if resource is resources.EVENTS_V1 else value


def from_storage(resource: Resource, value: Json) -> Json:
    """Convert the stored form to the one that clients of *resource* patch."""
    shown = _renamed(value, _TO_V1) if resource is resources.EVENTS_V1 else value
    return {"kind": resource.kind, "apiVersion": resource.group_version, **shown}


def _opening(resource: Resource) -> bytes:
    text = f'{{"kind":"{resource.kind}","apiVersion":"{resource.group_version}",'
    return text.encode()


def _renamed(value: Json, names: dict[str, str]) -> Json:
    return {names.get(key, key): member for key, member in value.items()}
