"""Every object of a real API server, to compare the state before and after."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import CLUSTER_ROLES, CONFIGMAPS, NAMESPACES, SERVICE_ACCOUNTS
from kube.objects import decode_object
from tests.support.waiting import until

Json = dict[str, Any]
Snapshot = Mapping[str, Json]

# Events expire by themselves; the others only change with time.
_PASSED_OVER: Final = frozenset({"events", "componentstatuses"})
_SERVICE_CIDRS: Final = "/apis/networking.k8s.io/v1/servicecidrs"
_CIDR_CONTROLLER: Final = "service-cidr-controller"
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


async def wait_for_controllers(client: KubeClient) -> None:
    """Wait until the cluster's own controllers have made what a cluster has from them.

    That is what each namespace has, the rules of roles that are made of others, and the condition
    of the range of Services' addresses. That one the API server writes when it makes the range, and
    kube-controller-manager once more in its own words, after its finalizer
    (pkg/controller/servicecidrs/servicecidrs_controller.go, Kubernetes 1.36).
    """

    async def ranges() -> list[Json]:
        try:
            found: list[Json] = json.loads(await client.get_path(_SERVICE_CIDRS))["items"]
        except NotFound:  # before Kubernetes 1.33
            return []
        return found

    async def made() -> bool:
        roles = [decode_object(raw) for raw in (await client.list(CLUSTER_ROLES)).items]
        if any(role.get("aggregationRule") and not role.get("rules") for role in roles):
            return False
        if not all(_has_written_status(_CIDR_CONTROLLER, found) for found in await ranges()):
            return False
        spaces = {
            decode_object(raw)["metadata"]["name"] for raw in (await client.list(NAMESPACES)).items
        }
        for kind, name in ((CONFIGMAPS, "kube-root-ca.crt"), (SERVICE_ACCOUNTS, "default")):
            objects = [decode_object(raw)["metadata"] for raw in (await client.list(kind)).items]
            if {body["namespace"] for body in objects if body["name"] == name} < spaces:
                return False
        return "kube-node-lease" in spaces

    await until(made, what="the cluster's own objects are complete", limit_s=60)


def _has_written_status(manager: str, body: Json) -> bool:
    return any(
        (entry["manager"], entry.get("subresource")) == (manager, "status")
        for entry in body["metadata"].get("managedFields", ())
    )


async def _paths(client: KubeClient) -> list[str]:
    """Return the path of each resource that discovery lists, in one version that serves it."""
    groups = json.loads(await client.get_path("/apis"))["groups"]
    found = await _listable(client, "/api/v1")
    for group in groups:
        versions = [group["preferredVersion"], *group["versions"]]
        in_group: dict[str, str] = {}
        for version in versions:
            for path in await _listable(client, f"/apis/{version['groupVersion']}"):
                in_group.setdefault(path.rpartition("/")[2], path)
        found += sorted(in_group.values())
    return found


async def _listable(client: KubeClient, root: str) -> list[str]:
    resources = decode_object(await client.get_path(root))["resources"]
    listable = {resource["name"] for resource in resources if "list" in resource["verbs"]}
    return [f"{root}/{name}" for name in sorted(listable - _PASSED_OVER)]


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
