"""Every object of a real API server, to compare what was there before with what is there after."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import KubeError
from kube.objects import decode_object

Json = dict[str, Any]
Snapshot = Mapping[str, Json]

# Events lapse by themselves; the others only say when somebody last looked.
_PASSED_OVER: Final = frozenset({"events", "componentstatuses"})
_CHANGES_BY_ITSELF: Final = ("resourceVersion", "managedFields", "generation")


async def snapshot(client: KubeClient) -> Snapshot:
    """List everything that can be listed, as ``group/version kind namespace/name``."""
    found: dict[str, Json] = {}
    for path in await _paths(client):
        try:
            listed = json.loads(await client.get_path(path))
        except KubeError:  # a resource that only looks like a list, such as a review
            continue
        for item in listed.get("items") or ():
            metadata = item["metadata"]
            key = f"{path} {metadata.get('namespace', '')}/{metadata['name']}"
            found[key] = _steady(path, item)
    return found


async def _paths(client: KubeClient) -> list[str]:
    groups = json.loads(await client.get_path("/apis"))["groups"]
    roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found = []
    for root in roots:
        resources = decode_object(await client.get_path(root))["resources"]
        listable = {
            resource["name"] for resource in resources if "list" in resource["verbs"]
        } - _PASSED_OVER
        found += [f"{root}/{name}" for name in sorted(listable)]
    return found


def _steady(path: str, item: Json) -> Json:
    """Leave out what changes without anybody's doing."""
    metadata = {
        key: value for key, value in item["metadata"].items() if key not in _CHANGES_BY_ITSELF
    }
    kept = {**item, "metadata": metadata}
    if path.endswith("/leases"):
        kept.pop("spec", None)  # when it was last renewed, and by whom
    if path.endswith("/nodes"):
        # kubelet tells in its own time which images it has.
        kept["status"] = {key: value for key, value in item["status"].items() if key != "images"}
    conditions = (item.get("status") or {}).get("conditions")
    if conditions:
        steady = [
            {key: value for key, value in one.items() if "Time" not in key} for one in conditions
        ]
        kept["status"] = {**kept["status"], "conditions": steady}
    return kept


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Name each object that came, went or changed, and in which of its parts."""
    found = [f"came: {key}" for key in sorted(after.keys() - before.keys())]
    found += [f"went: {key}" for key in sorted(before.keys() - after.keys())]
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        parts = sorted(part for part in old.keys() | new.keys() if old.get(part) != new.get(part))
        if parts:
            now = {part: new.get(part) for part in parts}
            was = {part: old.get(part) for part in parts}
            found.append(f"changed: {key}: {was} -> {now}")
    return found
