"""The three kinds of PATCH: JSON patch, merge patch and Kubernetes' strategic merge patch.

JSON patch (RFC 6902) is left to the ``jsonpatch`` library. Merge patch is RFC 7386. Strategic
merge follows k8s.io/apimachinery pkg/util/strategicpatch for the lists that have a merge key.
"""

from __future__ import annotations

from typing import Any, Final

import jsonpatch
import jsonpointer

# Lists of objects that merge by a key, by the name of their field. "ports" is in merge_key.
# Source: patchMergeKey tags in k8s.io/api core/v1, apps/v1, batch/v1, admissionregistration/v1.
_MERGE_KEYS: Final = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name",
    "volumes": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath",
    "imagePullSecrets": "name", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name", "resourceClaims": "name", "conditions": "type",
    "addresses": "type", "ownerReferences": "uid", "secrets": "name", "webhooks": "name",
    "matchConditions": "name",
}  # fmt: skip
_MERGED_SETS: Final = frozenset({"finalizers"})
_DIRECTIVE: Final = "$patch"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_RETAIN: Final = "$retainKeys"


class PatchError(Exception):
    """The patch is well formed but does not apply to this object (422)."""


class BadPatchError(Exception):
    """The patch cannot be read at all (400)."""


def json_patch(document: Any, patch: Any) -> Any:
    """Return a copy of *document* with RFC 6902 operations applied.

    Raises:
        BadPatchError: *patch* is not a list of operations.
        PatchError: an operation failed, a ``test`` among them.
    """
    if not isinstance(patch, list):
        raise BadPatchError(f"a JSON patch is a list of operations, not {type(patch).__name__}")
    try:
        return jsonpatch.apply_patch(document, patch)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError) as error:
        raise PatchError(str(error)) from error


def merge_patch(document: Any, patch: Any) -> Any:
    """Return the result of an RFC 7386 merge patch: null removes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(document: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Return the result of a strategic merge patch: lists with a merge key are merged by it.

    Raises:
        BadPatchError: the patch is not an object.
    """
    if not isinstance(patch, dict):
        raise BadPatchError(f"a strategic merge patch is an object, not {type(patch).__name__}")
    match patch.get(_DIRECTIVE):
        case "replace":
            return {key: value for key, value in patch.items() if key != _DIRECTIVE}
        case "delete":
            return {}
        case _:
            pass
    kept = patch.get(_RETAIN, document)
    merged = {key: value for key, value in document.items() if key in kept}
    _delete_from_sets(merged, patch)
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(key, merged.get(key), value, patch.get(f"{_ORDER}{key}"))
    return merged


def _delete_from_sets(merged: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, gone in patch.items():
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            merged[name] = [item for item in merged.get(name) or [] if item not in gone]


def _merged(key: str, old: Any, new: Any, order: Any) -> Any:
    if isinstance(new, dict):
        return strategic_merge_patch(old if isinstance(old, dict) else {}, new)
    if not isinstance(new, list):
        return new
    if key in _MERGED_SETS:
        return [*(old or []), *(item for item in new if item not in (old or []))]
    name = merge_key(key, [*(old or []), *new])
    if name is None:
        return new
    return _merged_list(old or [], new, merge_key=name, order=order)


def merge_key(key: str, items: list[Any]) -> str | None:
    """Return the field by which the items of the list *key* merge, or None if they do not."""
    if key != "ports":
        return _MERGE_KEYS.get(key)
    # Container ports merge by containerPort, Service ports by port.
    if any(isinstance(item, dict) and "containerPort" in item for item in items):
        return "containerPort"
    return "port"


def _merged_list(old: list[Any], new: list[Any], *, merge_key: str, order: Any) -> list[Any]:
    if any(item.get(_DIRECTIVE) == "replace" and len(item) == 1 for item in new):
        return [item for item in new if _DIRECTIVE not in item]
    merged: dict[Any, Any] = {item[merge_key]: item for item in old}
    for item in new:
        if item.get(_DIRECTIVE) == "delete":
            merged.pop(item[merge_key], None)
        else:
            before = merged.get(item[merge_key], {})
            merged[item[merge_key]] = strategic_merge_patch(before, item)
    listed = order if isinstance(order, list) else new
    wanted = [item.get(merge_key) for item in listed if isinstance(item, dict)]
    before = [item[merge_key] for item in old]
    return [merged[key] for key in _ordered(list(merged), wanted=wanted, before=before)]


def _ordered(keys: list[Any], *, wanted: list[Any], before: list[Any]) -> list[Any]:
    """Return *keys* in the order of the patch, with the others where they were before.

    Source: strategicpatch mergeSortedSlice: a key that only the object has comes before one of the
    patch only if both were in the object, in this order.
    """
    patched = [key for key in wanted if key in keys]
    others = [key for key in before if key in keys and key not in patched]
    ordered: list[Any] = []
    while patched and others:
        both_known = patched[0] in before
        earlier = both_known and before.index(others[0]) < before.index(patched[0])
        ordered.append(others.pop(0) if earlier else patched.pop(0))
    return [*ordered, *others, *patched, *(key for key in keys if key not in {*wanted, *before})]
