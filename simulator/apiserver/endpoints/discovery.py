"""The discovery documents that kubectl reads first: versions, groups and resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery import resources
from simulator.objects import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.resources import Resource

_VERBS: Final = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES: Final = {
    "binding": ("Binding", "v1", ["create"]),
    "eviction": ("Eviction", "policy/v1", ["create"]),
}
VERSION: Final[Json] = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-simulated",
                        "platform": "linux/amd64"}  # fmt: skip


def answer(path: str, served: Sequence[Resource] = resources.ALL) -> Json | None:
    """Return the discovery document at *path* for the resources served, or None."""
    versions = {(one.group, one.version) for one in served if one.group}
    match path.strip("/").split("/"):
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(group, version) for group, version in sorted(versions)],
            }
        case ["apis", group]:
            found = [_group(*one) for one in versions if one[0] == group]
            return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None
        case ["api", "v1"]:
            return _resource_list("", "v1", served)
        case ["apis", group, version] if (group, version) in versions:
            return _resource_list(group, version, served)
        case _:
            return None


def _group(group: str, version: str) -> Json:
    named = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [named], "preferredVersion": named}


def _resource_list(group: str, version: str, served: Sequence[Resource]) -> Json:
    rows: list[Json] = []
    for resource in (one for one in served if one.group == group):
        row = {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _VERBS,
        }
        if resource.short_names:
            row["shortNames"] = list(resource.short_names)
        rows.append(row)
        rows.extend(_subresource(resource, name) for name in sorted(resource.subresources))
    return {
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version, "resources": rows,
    }  # fmt: skip


def _subresource(resource: Resource, name: str) -> Json:
    kind, group_version, verbs = _SUBRESOURCES.get(
        name, (resource.kind, resource.group_version, ["get", "patch", "update"])
    )
    group, _, version = group_version.rpartition("/")
    return {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "group": group,
        "version": version,
        "kind": kind,
        "verbs": verbs,
    }
