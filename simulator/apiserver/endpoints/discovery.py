"""The discovery documents that kubectl reads first: versions, groups and resources."""

from __future__ import annotations

from typing import Final

from simulator.apiserver.apimachinery import resources
from simulator.objects import Json

_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES: Final = {
    "binding": ("Binding", "v1", ["create"]),
    "eviction": ("Eviction", "policy/v1", ["create"]),
    "scale": ("Scale", "autoscaling/v1", ["get", "patch", "update"]),
    "finalize": ("Namespace", "v1", ["update"]),
}
VERSION: Final[Json] = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-simulated",
                        "platform": "linux/amd64"}  # fmt: skip


def answer(path: str) -> Json | None:
    """Return the discovery document at *path*, or None."""
    match path.strip("/").split("/"):
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = sorted({resource.group for resource in resources.ALL if resource.group})
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(served) for served in groups],
            }
        case ["apis", group] if resources.is_served(group, "v1"):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["api", "v1"]:
            return _resource_list("")
        case ["apis", group, "v1"] if resources.is_served(group, "v1"):
            return _resource_list(group)
        case _:
            return None


def _group(group: str) -> Json:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _resource_list(group: str) -> Json:
    rows: list[Json] = []
    for resource in (served for served in resources.ALL if served.group == group):
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
        "groupVersion": f"{group}/v1" if group else "v1", "resources": rows,
    }  # fmt: skip


def _subresource(resource: resources.Resource, name: str) -> Json:
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
