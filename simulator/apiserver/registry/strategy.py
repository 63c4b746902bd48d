"""Rules of metadata for every kind: optimistic locking, preconditions, grace, status updates.

Source: k8s.io/apiserver pkg/registry/rest/{create,update,delete}.go and the strategies of
k8s.io/kubernetes pkg/registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s.pod import has_ended
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import (
    bad_request,
    precondition_failed,
    stale,
    version_required,
    wrong_uid,
)
from simulator.objects import Json, metadata, thaw, without_nulls

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.request_info import Target
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Stored

SERVER_OWNED: Final = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
)  # fmt: skip


def check_preconditions(target: Target, found: Json, options: Json) -> None:
    """Check DeleteOptions' preconditions against the object.

    Raises:
        ApiError: 409, it is another object or another version.
    """
    wanted = options.get("preconditions") or {}
    meta = found["metadata"]
    for member, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(member) not in (None, meta[member]):
            raise precondition_failed(
                target.resource,
                target.name,
                field=field,
                wanted=wanted[member],
                found=meta[member],
            )


def cleaned(resource: Resource, value: Json) -> Json:
    """Return the object without nulls, empty metadata maps and what is stored beside it."""
    clean: Json = without_nulls(value)
    clean.pop("kind", None)
    clean.pop("apiVersion", None)
    meta = metadata(clean)
    meta.pop("managedFields", None)
    meta.pop("selfLink", None)
    for member in ("labels", "annotations", "ownerReferences", "finalizers"):
        found = meta.get(member)
        if found is not None and not isinstance(found, dict if member[0] in "la" else list):
            raise bad_request(f"metadata.{member} of a {resource.kind} has the wrong type")
        if not found:
            meta.pop(member, None)
    return clean


def check_lock(target: Target, meta: Json, current: Stored) -> None:
    """Check name, uid and resourceVersion of an update against the current object.

    Raises:
        ApiError: 400 for another name, 409 for another object or version, 422 for none.
    """
    resource = target.resource
    if meta.get("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL "
            f"({target.name})"
        )
    uid = current.object["metadata"]["uid"]
    if meta.get("uid", uid) != uid:
        raise wrong_uid(target, wanted=meta["uid"], found=uid)
    version = meta.get("resourceVersion")
    if version in (None, "", "0"):
        if not resource.unconditional_update:
            raise version_required(resource, target.name)
    elif version != str(current.revision):
        raise stale(resource, target.name)


def keep_all_but_status(resource: Resource, value: Json, before: Json) -> None:
    """Revert, in place, what a write to the status subresource must not change."""
    # Pods and nodes let labels and annotations be changed together with the status; the others
    # do not (podStatusStrategy and nodeStatusStrategy reset only the spec).
    kept: dict[str, Any] = thaw(before)
    kept["status"] = value.get("status", {})
    if resource.schema is not None and "status" not in value:
        del kept["status"]
    if resource.qualified in {resources.PODS.qualified, resources.NODES.qualified}:
        kept["metadata"] = value["metadata"]
    value.clear()
    value.update(kept)


def grace_s(resource: Resource, value: Json, options: Json) -> int:
    """Return the seconds until a deleted object may be removed; only pods on a node get any.

    A negative request is one second (BeforeDelete in rest/delete.go).
    """
    if resource.qualified != resources.PODS.qualified:
        return 0
    if not value["spec"].get("nodeName") or has_ended(value["status"].get("phase")):
        return 0
    asked = options.get("gracePeriodSeconds")
    if asked is None:
        asked = value["spec"]["terminationGracePeriodSeconds"]
    return int(asked) if int(asked) >= 0 else 1
