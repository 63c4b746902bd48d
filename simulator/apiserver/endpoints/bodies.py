"""Bodies: how objects are sent, what a request's must be, and three kinds of patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.apiserver.apimachinery import patches
from simulator.apiserver.apimachinery.errors import (
    StatusCause,
    bad_request,
    invalid,
    unprocessable_patch,
    unsupported_media_type,
)
from simulator.objects import Json, decode, encode

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.request_info import Target
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Stored


def object_of(content_type: str, body: bytes) -> Json:
    """Return the body as one object.

    Raises:
        ApiError: 415 for a media type we do not know, 400 for anything but an object.
    """
    value = _decoded(content_type, body)
    if not isinstance(value, dict):
        raise bad_request(
            "the object provided is unrecognized: couldn't get version/kind; json parse error: "
            f"want an object, got {type(value).__name__}"
        )
    if "metadata" in value and not isinstance(value["metadata"], dict):
        raise bad_request("metadata is not an object")
    return value


def _decoded(content_type: str, body: bytes) -> Any:
    if "json" not in content_type:
        raise unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        )
    try:
        return decode(body)
    except ValueError as error:
        raise bad_request(
            "the object provided is unrecognized: couldn't get version/kind; json parse error: "
            f"{error}"
        ) from error


def patch_of(content_type: str, body: bytes, resource: Resource) -> Any:
    """Return the body as a patch of the kind that its media type names.

    Raises:
        ApiError: 415 for another kind; 400 for what is not JSON.
    """
    kinds = ("json-patch+json", "merge-patch+json", "strategic-merge-patch+json")
    if content_type not in {f"application/{kind}" for kind in kinds}:
        raise unsupported_media_type("415: Unsupported Media Type", details={})
    if resource.schema is not None and content_type.startswith("application/strategic"):
        raise unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, "
            "application/apply-patch+yaml"
        )
    try:
        return decode(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from error


def apply_patch(content_type: str, value: Json, patch: Any) -> Json:
    """Return a patched copy of *value*.

    Raises:
        ApiError: 422 or 400, as the API server answers.
    """
    try:
        match content_type:
            case "application/json-patch+json":
                patched = patches.json_patch(value, patch)
            case "application/merge-patch+json":
                patched = patches.merge_patch(value, patch)
            case _:
                patched = patches.strategic_merge_patch(value, patch)
    except patches.PatchError as error:
        raise unprocessable_patch() from error
    except patches.BadPatchError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if not isinstance(patched, dict):
        raise bad_request(f"the patched object is {type(patched).__name__}; want an object")
    return patched


def check_kind(resource: Resource, body: Json) -> None:
    """Check kind and apiVersion against the URL.

    Raises:
        ApiError: 400.
    """
    # Missing kind and apiVersion take those of the URL, as the server's decoder does.
    kind, version = body.get("kind") or resource.kind, body.get("apiVersion")
    if kind != resource.kind or (version or resource.group_version) != resource.group_version:
        raise bad_request(
            f"{kind} in version {(version or resource.group_version)!r} cannot be handled as a "
            f"{resource.kind}: the URL is for {resource.group_version} {resource.kind}"
        )


def check_same_uid(target: Target, before: Json, patched: Json) -> None:
    """Reject a patch that is meant for another object of this name.

    Raises:
        ApiError: 422, as the API server answers to a patch (an update gets 409).
    """
    uid = (patched.get("metadata") or {}).get("uid")
    if uid not in (None, before["metadata"]["uid"]):
        fault = StatusCause(
            field="metadata.uid",
            reason="FieldValueInvalid",
            message=f'Invalid value: "{uid}": field is immutable',
        )
        raise invalid(target.resource, target.name, [fault])


def check_namespace(target: Target, body: Json) -> None:
    """Check the namespace in the body, if any, against the URL.

    Raises:
        ApiError: 400.
    """
    named = (body.get("metadata") or {}).get("namespace") or ""
    if named and named != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def encoded(resource: Resource, stored: Stored) -> bytes:
    """Return a stored object as JSON, with kind and apiVersion."""
    return _opening(resource) + stored.encoded[1:]


def encoded_item(resource: Resource, stored: Stored) -> bytes:
    """Return a stored object as a list item in JSON: without kind and apiVersion.

    Items of custom resources have both, on the real server as well.
    """
    return stored.encoded if resource.schema is None else encoded(resource, stored)


def encoded_value(resource: Resource, value: Json) -> bytes:
    """Return an object that is not (or not so) stored as JSON, with kind and apiVersion."""
    return _opening(resource) + encode(value)[1:]


def _opening(resource: Resource) -> bytes:
    text = f'{{"kind":"{resource.kind}","apiVersion":"{resource.group_version}",'
    return text.encode()
