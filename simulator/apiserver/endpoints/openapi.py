"""OpenAPI v3 documents: what kubectl reads before it applies.

Source: docs "API concepts" (OpenAPI V3) and k8s.io/kube-openapi pkg/handler3. There is one document
for each group and version. It says what an operation's parameters are, and nothing about fields:
kubectl then leaves their validation to the server, and makes patches from its own types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.objects import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.resources import Resource

_PARAMETERS: Final = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def answer(path: str, served: Sequence[Resource]) -> Json | None:
    """Return the OpenAPI document at *path*, or None."""
    match path.strip("/").split("/"):
        case ["openapi", "v3"]:
            places = sorted({_place(one) for one in served})
            # The hash names a version that clients may keep; there is only one.
            urls = {place: f"/openapi/v3/{place}?hash=1" for place in places}
            return {"paths": {place: {"serverRelativeURL": url} for place, url in urls.items()}}
        case ["openapi", "v3", *rest]:
            here = [one for one in served if _place(one) == "/".join(rest)]
            return _document(here) if here else None
        case _:
            return None


def _place(resource: Resource) -> str:
    prefix = f"apis/{resource.group}" if resource.group else "api"
    return f"{prefix}/{resource.version}"


def _document(served: Sequence[Resource]) -> Json:
    paths: Json = {}
    for resource in served:
        scope = "/namespaces/{namespace}" if resource.namespaced else ""
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        patch = {"x-kubernetes-group-version-kind": kind, "parameters": _PARAMETERS}
        paths[f"/{_place(resource)}{scope}/{resource.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": "v1.36.0-simulated"}
    return {"openapi": "3.0.0", "info": info, "paths": paths}
