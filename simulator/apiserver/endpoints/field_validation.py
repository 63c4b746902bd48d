"""Fields that a kind does not have: refused or warned of, as ``fieldValidation`` asks.

Source: docs "API concepts" (Field validation). A request without the parameter is not checked
here; a real server warns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kube.model_fields import OBJECT_META, FieldType, fields_of, model_of
from simulator.apiserver.apimachinery.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.apiserver.apimachinery.request_info import Context
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json

_DIRECTIVES: Final = ("Ignore", "Warn", "Strict")
_LISTED: Final = 10  # the server names so many faults and no more


def check_fields(resource: Resource, value: Json, directive: str, context: Context) -> None:
    """Check that *resource* has every field of *value*; warn in *context*, or refuse.

    Raises:
        ApiError: 400, with the unknown fields if the directive is Strict.
    """
    if directive in ("", "Ignore"):
        return
    if directive not in _DIRECTIVES:
        raise bad_request(f"fieldValidation is {directive!r}; want Ignore, Warn or Strict")
    found = [f'unknown field "{path}"' for path in sorted(unknown_fields(resource, value))]
    if not found:
        return
    if directive == "Warn":
        context.warnings.extend(found[:_LISTED])
        return
    raise bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
        f"strict decoding error: {', '.join(found[:_LISTED])}"
    )


def unknown_fields(resource: Resource, value: Json) -> Iterator[str]:
    """Yield the path of each field that the resource does not have."""
    if resource.schema is not None:
        yield from _of_model(OBJECT_META, value.get("metadata"), "metadata")
        rest = {name: one for name, one in value.items() if name not in _ROOT}
        yield from _of_schema(resource.schema, rest, "")
        return
    model = model_of(resource.group, resource.version, resource.kind)
    if model is not None:
        yield from _of_model(model, value, "")


_ROOT: Final = frozenset({"apiVersion", "kind", "metadata"})


def _of_model(model: str, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    known = fields_of(model)
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        if name not in known:
            yield here
        elif known[name].is_model:
            yield from _of_members(known[name], inner, here)


def _of_members(field: FieldType, value: Any, path: str) -> Iterator[str]:
    if field.of == "list" and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _of_model(field.name, item, f"{path}[{position}]")
    elif field.of == "map" and isinstance(value, dict):
        for name, item in value.items():
            yield from _of_model(field.name, item, f"{path}.{name}")
    else:
        yield from _of_model(field.name, value, path)


def _of_schema(schema: Json, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _of_schema(schema.get("items") or {}, item, f"{path}[{position}]")
    elif isinstance(value, dict) and "properties" in schema:
        for name, inner in value.items():
            here = f"{path}.{name}" if path else name
            if name in schema["properties"]:
                yield from _of_schema(schema["properties"][name], inner, here)
            else:
                yield here
