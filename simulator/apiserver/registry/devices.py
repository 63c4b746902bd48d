"""What the API server rejects of claims, slices and pods that name claims.

Source: k8s.io/kubernetes pkg/apis/resource/validation and pkg/apis/core/validation. What CEL
expressions are is left to whoever evaluates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s import quantity
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import StatusCause
from simulator.apiserver.registry.faults import (
    LABEL,
    LABEL_RULE,
    SUBDOMAIN,
    SUBDOMAIN_RULE,
    bad,
    duplicate,
    required,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json

_MOST_REQUESTS: Final = 32
_IMMUTABLE: Final = "field is immutable"
_WHERE: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"


def faults(resource: Resource, value: Json) -> Iterator[StatusCause]:
    """Yield every fault of a new object of this group, or of a changed one taken by itself."""
    match resource.qualified:
        case resources.RESOURCE_CLAIMS.qualified:
            yield from _requests((value.get("spec") or {}).get("devices") or {})
        case resources.RESOURCE_SLICES.qualified:
            yield from _slice(value["spec"])
        case _:
            pass


def update_faults(resource: Resource, value: Json, before: Json) -> Iterator[StatusCause]:
    """Yield every fault of a changed object; a claim's spec never changes, and its status may."""
    if resource.qualified == resources.RESOURCE_CLAIMS.qualified:
        if value.get("spec") != before.get("spec"):
            yield bad("spec", value.get("spec"), _IMMUTABLE)
            return
        yield from _claim_status(value.get("status") or {}, before.get("status") or {})
        return
    yield from faults(resource, value)
    if resource.qualified == resources.RESOURCE_SLICES.qualified:
        for member in ("driver", "nodeName"):
            if value["spec"].get(member) != before["spec"].get(member):
                yield bad(f"spec.{member}", value["spec"].get(member), _IMMUTABLE)
        pool, old = value["spec"]["pool"], before["spec"]["pool"]
        if pool.get("name") != old.get("name"):
            yield bad("spec.pool.name", pool.get("name"), _IMMUTABLE)


def _requests(devices: Json) -> Iterator[StatusCause]:
    field, found = "spec.devices.requests", devices.get("requests") or []
    if len(found) > _MOST_REQUESTS:
        yield StatusCause(
            field=field,
            reason="FieldValueTooMany",
            message=f"Too many: {len(found)}: must have at most {_MOST_REQUESTS} items",
        )
    for index, request in enumerate(found):
        at, name = f"{field}[{index}]", request.get("name")
        if not name:
            yield required(f"{at}.name")
        elif not LABEL.fullmatch(name):
            yield bad(f"{at}.name", name, LABEL_RULE)
        yield from _exactly(at, request)
    yield from _duplicates(field, [request.get("name") for request in found])


def _exactly(field: str, request: Json) -> Iterator[StatusCause]:
    exactly = request.get("exactly")
    if (exactly is None) == (not request.get("firstAvailable")):
        yield required(field, _ONE_KIND)
    elif exactly is not None:
        if not exactly.get("deviceClassName"):
            yield required(f"{field}.exactly.deviceClassName")
        if exactly.get("allocationMode") == "ExactCount" and exactly["count"] <= 0:
            yield bad(f"{field}.exactly.count", exactly["count"], "must be greater than zero")


def _duplicates(field: str, found: list[Any]) -> Iterator[StatusCause]:
    for index, name in enumerate(found):
        if name in found[:index]:
            yield duplicate(f"{field}[{index}]", name)


def _claim_status(status: Json, before: Json) -> Iterator[StatusCause]:
    allocation, old = status.get("allocation"), before.get("allocation")
    if status.get("reservedFor") and not allocation:
        yield StatusCause(
            field="status.reservedFor",
            reason="FieldValueForbidden",
            message="Forbidden: may not be specified when `allocated` is not set",
        )
    if allocation and old and allocation != old:
        yield bad("status.allocation", allocation, _IMMUTABLE)


def _slice(spec: Json) -> Iterator[StatusCause]:
    if not spec.get("driver"):
        yield required("spec.driver")
    pool = spec.get("pool") or {}
    if not pool.get("name"):
        yield required("spec.pool.name")
    if pool.get("resourceSliceCount", 0) <= 0:
        count = pool.get("resourceSliceCount", 0)
        yield bad("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if sum(bool(spec.get(member)) for member in _WHERE) != 1:
        shown = ", ".join(f"`{member}`" for member in _WHERE)
        yield required("spec", f"exactly one of {shown} is required")
    found = spec.get("devices") or []
    for index, device in enumerate(found):
        at = f"spec.devices[{index}]"
        if not LABEL.fullmatch(device.get("name") or ""):
            yield bad(f"{at}.name", device.get("name"), LABEL_RULE)
        for name, capacity in (device.get("capacity") or {}).items():
            yield from _capacity(f"{at}.capacity[{name}].requestPolicy", capacity)
    yield from _duplicates("spec.devices", [device.get("name") for device in found])


def _capacity(field: str, capacity: Json) -> Iterator[StatusCause]:
    policy = capacity.get("requestPolicy") or {}
    least, value = (policy.get("validRange") or {}).get("min"), capacity["value"]
    if least is None:
        return
    smallest = quantity.parse(least)
    if smallest > quantity.parse(value):
        yield bad(f"{field}.validRange.min", least, f"min is larger than capacity value: {value}")
    default = policy.get("default")
    if default is not None and quantity.parse(default) < smallest:
        yield bad(f"{field}.validRange.min", default, f"default is less than min: {least}")


def claims_of_a_pod(path: str, spec: Json) -> Iterator[StatusCause]:
    """Yield every fault of a pod's claims, and of its containers' references to them."""
    field, found = f"{path}.resourceClaims", spec.get("resourceClaims") or []
    for index, claim in enumerate(found):
        at, name = f"{field}[{index}]", claim.get("resourceClaimName")
        sources = [claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")]
        if claim.get("name") in [earlier.get("name") for earlier in found[:index]]:
            yield duplicate(f"{at}.name", claim["name"])
        if not any(sources):
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield bad(at, claim, text)
        elif all(sources):
            text = (
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
            yield bad(at, claim, text)
        if name and not SUBDOMAIN.fullmatch(name):
            yield bad(f"{at}.resourceClaimName", name, SUBDOMAIN_RULE)
    names = [claim.get("name") for claim in found]
    for member in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(member) or []):
            at = f"{path}.{member}[{index}].resources.claims"
            yield from _references(at, container, names)


def _references(field: str, container: Json, names: list[str]) -> Iterator[StatusCause]:
    seen: set[tuple[str, str]] = set()
    for index, claim in enumerate((container.get("resources") or {}).get("claims") or []):
        key = claim.get("name", ""), claim.get("request", "")
        if key in seen:
            yield duplicate(f"{field}[{index}]", "/".join(filter(None, key)))
        seen.add(key)
        if key[0] not in names:
            known = ", ".join(names)
            yield StatusCause(
                field=f"{field}[{index}]",
                reason="FieldValueNotFound",
                message=f'Not found: "{key[0]}": must be one of the names in '
                f"pod.spec.resourceClaims{': ' if known else ''}{known}",
            )
