from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from simulator.apiserver.apimachinery.resources import DEFINITIONS, PODS
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.apiserver.registry.custom_resources import (
    ServedResources,
    defined_by,
    definition_faults,
)

if TYPE_CHECKING:
    from simulator.objects import Json

DEFINITION: Json = {
    "metadata": {"name": "things.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1beta1",
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {}}},
            }
        ],
    },
}


def changed(**spec: Any) -> Json:
    return {**DEFINITION, "spec": {**DEFINITION["spec"], **spec}}


def test_a_definition_is_served_while_it_is_stored() -> None:
    store = Store()
    served = ServedResources(store)
    key = Key(DEFINITIONS.qualified, "", "things.example.org")
    assert served.find("example.org", "v1beta1", "things") is None
    assert not served.is_served("example.org", "v1beta1")

    stored = store.write(key, copy.deepcopy(DEFINITION), expected=0)

    found = served.find("example.org", "v1beta1", "things")
    assert found == defined_by(DEFINITION)
    assert found is served.find("example.org", "v1beta1", "things")
    assert found in served.all()
    assert served.is_served("example.org", "v1beta1")
    assert served.find("", "v1", "pods") is PODS

    store.remove(key, copy.deepcopy(DEFINITION), expected=stored.revision)
    assert served.find("example.org", "v1beta1", "things") is None


def test_a_changed_definition_changes_what_is_served() -> None:
    store = Store()
    served = ServedResources(store)
    key = Key(DEFINITIONS.qualified, "", "things.example.org")
    first = store.write(key, copy.deepcopy(DEFINITION), expected=0)
    assert served.is_served("example.org", "v1beta1")

    version = {**DEFINITION["spec"]["versions"][0], "name": "v1"}
    store.write(key, copy.deepcopy(changed(versions=[version])), expected=first.revision)

    assert served.is_served("example.org", "v1")
    assert not served.is_served("example.org", "v1beta1")


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        (changed(versions=DEFINITION["spec"]["versions"] * 2), "spec.versions"),
        (changed(versions=[{"name": "v1"}]), "spec.versions[0].schema.openAPIV3Schema"),
        (
            changed(
                versions=[
                    {
                        "name": "v1",
                        "schema": {"openAPIV3Schema": {"properties": {}, "oneOf": []}},
                    }
                ]
            ),
            "spec.versions[0].schema.openAPIV3Schema",
        ),
    ],
)
def test_a_definition_that_cannot_be_served_is_invalid(definition: Json, field: str) -> None:
    assert definition_faults(definition)[0].field == field
