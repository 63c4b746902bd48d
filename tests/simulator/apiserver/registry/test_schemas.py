from typing import Any

import pytest

from simulator.apiserver.registry.schemas import faults
from simulator.objects import Json


def schema_of(**spec: Any) -> Json:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "string", "minLength": 1}, "", "FieldValueInvalid"),
        ({"type": "string", "maxLength": 1}, "ab", "FieldValueTooLong"),
        ({"type": "string", "format": "date-time"}, "noon", "FieldValueTypeInvalid"),
        ({"type": "string", "format": "date-time"}, "2026-01-01T12:00:00", "FieldValueTypeInvalid"),
        ({"type": "string", "enum": ["a"]}, "b", "FieldValueNotSupported"),
        ({"type": "integer"}, 1.5, "FieldValueTypeInvalid"),
        ({"type": "integer"}, True, "FieldValueTypeInvalid"),
        ({"type": "integer", "minimum": 0}, -1, "FieldValueInvalid"),
        ({"type": "integer", "maximum": 1}, 2, "FieldValueInvalid"),
        ({"type": "boolean"}, 1, "FieldValueTypeInvalid"),
        ({"type": "object"}, [], "FieldValueTypeInvalid"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, ["a", "b"],
         "FieldValueTooMany"),
    ],
)  # fmt: skip
def test_a_value_outside_its_schema_is_a_fault_of_its_field(
    schema: Json, value: object, reason: str
) -> None:
    found = faults(schema_of(x=schema), {"spec": {"x": value}})

    assert [(fault.field, fault.reason) for fault in found] == [("spec.x", reason)]
