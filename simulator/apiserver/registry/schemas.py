"""Structural schemas of custom resources: pruning and validation.

Source: k8s.io/apiextensions-apiserver pkg/apiserver/{schema,validation}. Only the keywords
of our own definitions are evaluated, and of validation rules only ``self == oldSelf``.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from simulator.apiserver.apimachinery.errors import StatusCause
from simulator.objects import Json, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNCHANGED: Final = "self == oldSelf"
_RULES: Final = "x-kubernetes-validations"
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_SHOWN: Final = {str: "string", bool: "boolean", int: "integer", float: "float64"}
_ROOT: Final = frozenset({"apiVersion", "kind", "metadata"})


def prune(schema: Json, value: Json) -> None:
    """Remove, in place, the fields of an object that its schema does not name."""
    for name in [name for name in value if name not in _ROOT]:
        inner = schema["properties"].get(name)
        if inner is None:
            del value[name]
        else:
            _prune(inner, value[name])


def _prune(schema: Json, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _prune(schema.get("items") or {}, item)
    elif isinstance(value, dict) and "properties" in schema:
        for name in [name for name in value if name not in schema["properties"]]:
            del value[name]
        for name, inner in value.items():
            _prune(schema["properties"][name], inner)


def faults(schema: Json, value: Json, before: Json | None = None) -> list[StatusCause]:
    """Return every fault of an object; with *before*, of its change from that as well."""
    found = [fault for name, inner in schema["properties"].items() if name not in _ROOT
             for fault in _member(schema, inner, name, name, value)]  # fmt: skip
    # The server evaluates rules only of an object that is valid without them.
    if not found and before is not None:
        found = list(_changed(schema, "", value, before))
    return found


def _member(parent: Json, schema: Json, name: str, path: str, value: Json) -> Iterator[StatusCause]:
    if name in value:
        yield from _faults(schema, path, value[name])
    elif name in (parent.get("required") or ()):
        yield _fault(path, "Required", "Required value")


def _faults(schema: Json, path: str, value: Any) -> Iterator[StatusCause]:
    wanted = schema["type"]
    if not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean"):
        shown = encode(_SHOWN.get(type(value), "object")).decode()
        words = f"{path} in body must be of type {schema.get('format', wanted)}: {shown}"
        yield _fault(path, "TypeInvalid", f"Invalid value: {shown}: {words}")
        return
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(encode(one).decode() for one in schema["enum"])
        shown = encode(value).decode()
        yield _fault(path, "NotSupported", f"Unsupported value: {shown}: supported values: {known}")
    match value:
        case dict():
            for name, inner in (schema.get("properties") or {}).items():
                yield from _member(schema, inner, name, f"{path}.{name}", value)
        case list():
            yield from _items(schema, path, value)
        case str():
            yield from _text(schema, path, value)
        case int() | float():
            yield from _amount(schema, path, value)
        case _:
            pass


def _items(schema: Json, path: str, value: list[Any]) -> Iterator[StatusCause]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        words = f"{path} in body should have at least {least} items"
        yield _fault(path, "Invalid", f"Invalid value: {len(value)}: {words}")
    if most is not None and len(value) > most:
        words = f"Too many: {len(value)}: must have at most {most} items"
        yield _fault(path, "TooMany", words)
    for index, item in enumerate(value):
        yield from _faults(schema["items"], f"{path}[{index}]", item)


def _text(schema: Json, path: str, value: str) -> Iterator[StatusCause]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    shown = encode(value).decode()
    if len(value) < least:
        words = f"{path} in body should be at least {least} chars long"
        yield _fault(path, "Invalid", f"Invalid value: {shown}: {words}")
    if most is not None and len(value) > most:
        yield _fault(path, "TooLong", f"Too long: may not be more than {most} bytes")
    if schema.get("format") == "date-time" and not _is_time(value):
        words = f"{path} in body must be of type date-time: {shown}"
        yield _fault(path, "TypeInvalid", f"Invalid value: {shown}: {words}")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _amount(schema: Json, path: str, value: float) -> Iterator[StatusCause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and value < least:
        words = f"{path} in body should be greater than or equal to {least}"
        yield _fault(path, "Invalid", f"Invalid value: {value}: {words}")
    if most is not None and value > most:
        words = f"{path} in body should be less than or equal to {most}"
        yield _fault(path, "Invalid", f"Invalid value: {value}: {words}")


def _changed(schema: Json, path: str, value: Any, before: Any) -> Iterator[StatusCause]:
    for rule in schema.get(_RULES) or []:
        if rule["rule"] == _UNCHANGED and value != before:
            yield _fault(path, "Invalid", f"Invalid value: {rule.get('message', rule['rule'])}")
    if isinstance(value, dict) and isinstance(before, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name in value and name in before:
                where = f"{path}.{name}" if path else name
                yield from _changed(inner, where, value[name], before[name])


def _fault(path: str, reason: str, message: str) -> StatusCause:
    return StatusCause(field=path, reason=f"FieldValue{reason}", message=message)
