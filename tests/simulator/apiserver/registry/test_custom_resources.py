from typing import Any

import pytest

from simulator.apiserver.registry.custom_resources import (
    definition_faults,
)
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
