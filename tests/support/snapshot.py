"""Every object of a real API server, to compare the state before and after."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import KubeError
from kube.objects import decode_object

Json = dict[str, Any]
Snapshot = Mapping[str, Json]

# Events expire by themselves; the others only change with time.
_PASSED_OVER: Final = frozenset({"events", "componentstatuses"})
_CHANGES_BY_ITSELF: Final = ("resourceVersion", "managedFields", "generation")


async def snapshot(client: KubeClient) -> Snapshot:
    """Return every object that can be listed, by ``group/version kind namespace/name``."""
    found: dict[str, Json] = {}
    for path in await _paths(client):
        try:
            listed = json.loads(await client.get_path(path))
        except KubeError:  # a resource that cannot be listed after all, such as a review
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
    """Return *item* without what changes by itself."""
    metadata = {
        key: value for key, value in item["metadata"].items() if key not in _CHANGES_BY_ITSELF
    }
    kept = {**item, "metadata": metadata}
    if path.endswith("/leases"):
        kept.pop("spec", None)  # holder and time of the last renewal
    if path.endswith("/nodes"):
        # kubelet reports its images at its own pace.
        kept["status"] = {key: value for key, value in item["status"].items() if key != "images"}
    conditions = (item.get("status") or {}).get("conditions")
    if conditions:
        steady = [
            {key: value for key, value in one.items() if "Time" not in key} for one in conditions
        ]
        kept["status"] = {**kept["status"], "conditions": steady}
    return kept


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return each object that was added, removed or changed, and in which fields."""
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
