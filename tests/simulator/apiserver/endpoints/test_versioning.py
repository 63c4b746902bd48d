from __future__ import annotations

from simulator.apiserver.apimachinery.resources import EVENTS, EVENTS_V1, PODS
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.apiserver.endpoints.versioning import (
    encoded,
    encoded_item,
    encoded_value,
    from_storage,
    to_storage,
)
from simulator.objects import decode

CORE = {
    "metadata": {"name": "e", "namespace": "default"},
    "involvedObject": {"kind": "Pod", "name": "a"},
    "message": "text",
    "reportingComponent": "fracgpu",
    "count": 2,
}
V1 = {
    "metadata": {"name": "e", "namespace": "default"},
    "regarding": {"kind": "Pod", "name": "a"},
    "note": "text",
    "reportingController": "fracgpu",
    "deprecatedCount": 2,
}


def test_an_object_is_shown_with_its_kind_and_an_item_without() -> None:
    stored = Store().write(Key("pods", "default", "a"), {"metadata": {"name": "a"}}, expected=0)

    whole = decode(encoded(PODS, stored))
    item = decode(encoded_item(PODS, stored))

    assert whole == {"kind": "Pod", "apiVersion": "v1", **item}
    assert decode(encoded_value(PODS, item)) == whole


def test_an_event_is_stored_once_and_shown_in_two_ways() -> None:
    assert to_storage(EVENTS_V1, V1) == CORE
    assert to_storage(EVENTS, CORE) == CORE
    assert from_storage(EVENTS_V1, CORE) == {
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        **V1,
    }
    stored = Store().write(Key("events", "default", "e"), dict(CORE), expected=0)
    assert decode(encoded(EVENTS, stored))["message"] == "text"
    assert decode(encoded(EVENTS_V1, stored))["note"] == "text"
    assert decode(encoded_item(EVENTS_V1, stored))["note"] == "text"
