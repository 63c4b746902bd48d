"""OpenAPI v3 documents: what kubectl reads before it applies, validates or explains.

Source: docs "API concepts" (OpenAPI V3) and k8s.io/kube-openapi pkg/handler3. There is one document
for each group and version. An operation's parameters say what the server can do; the schemas have
every field with its type, without descriptions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from kube.model_fields import FieldType, fields_of, model_of
from simulator.objects import Json, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.resources import Resource

_TYPES: Final[dict[str, Json]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
    "datetime": {"type": "string", "format": "date-time"},
}
_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")


def answer(path: str, served: Sequence[Resource]) -> Json | None:
    """Return the OpenAPI document at *path*, or None."""
    match path.strip("/").split("/"):
        case ["openapi", "v3"]:
            return _root(served)
        case ["openapi", "v3", "api", version]:
            return _document("", version, served)
        case ["openapi", "v3", "apis", group, version]:
            return _document(group, version, served)
        case _:
            return None


def _root(served: Sequence[Resource]) -> Json:
    places = {_place(one): (one.group, one.version) for one in served}
    paths: Json = {}
    for place, (group, version) in sorted(places.items()):
        digest = hashlib.sha256(encode(_document(group, version, served))).hexdigest()
        paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest.upper()}"}
    return {"paths": paths}


def _place(resource: Resource) -> str:
    prefix = f"apis/{resource.group}" if resource.group else "api"
    return f"{prefix}/{resource.version}"


def _document(group: str, version: str, served: Sequence[Resource]) -> Json | None:
    here = [one for one in served if (one.group, one.version) == (group, version)]
    if not here:
        return None
    schemas: Json = {}
    paths: Json = {}
    for resource in here:
        name = _add_schema(resource, schemas)
        paths |= _paths(resource, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0-simulated"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _paths(resource: Resource, schema: str) -> Json:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"/{_place(resource)}{scope}/{resource.plural}"
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}

    def operation(action: str) -> Json:
        found: Json = {
            "operationId": f"{action}{resource.kind}",
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
            "responses": {"200": {"description": "OK", "content": body}},
        }
        if action != "get":
            found["parameters"] = [
                {"name": name, "in": "query", "schema": {"type": "string"}} for name in _PARAMETERS
            ]
        return found

    # Without the media types of its body, kubectl makes patches from its own types.
    one = {"get": operation("get"), "put": operation("put"), "patch": operation("patch")}
    return {collection: {"post": operation("post")}, f"{collection}/{{name}}": one}


def _add_schema(resource: Resource, schemas: Json) -> str:
    """Add the schema of a resource and all that it leads to; return its name."""
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    if resource.schema is not None:
        name = f"{resource.group}.{resource.version}.{resource.kind}"
        schemas[name] = {**resource.schema, "x-kubernetes-group-version-kind": [kind]}
        return name
    model = model_of(resource.group, resource.version, resource.kind)
    if model is None:
        schemas[resource.kind] = {"type": "object", "x-kubernetes-group-version-kind": [kind]}
        return resource.kind
    waiting = [model]
    while waiting:
        name = waiting.pop()
        if name in schemas:
            continue
        fields = fields_of(name)
        schemas[name] = {
            "type": "object",
            "properties": {field: _schema(kind) for field, kind in fields.items()},
        }
        waiting += [found.name for found in fields.values() if found.is_model]
    schemas[model]["x-kubernetes-group-version-kind"] = [kind]
    return model


def _schema(field: FieldType) -> Json:
    inner: Json = _TYPES.get(field.name, {})
    if field.is_model:
        inner = {"$ref": f"#/components/schemas/{field.name}"}
    match field.of:
        case "list":
            return {"type": "array", "items": inner}
        case "map":
            return {"type": "object", "additionalProperties": inner}
        case _:
            return inner
