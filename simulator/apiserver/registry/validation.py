"""What the API server rejects with 422, as far as FracGPU can meet it.

Source: k8s.io/kubernetes pkg/apis/{core,apps,batch,policy,resource}/validation; with its
messages. What a new claim or slice may ask for is left to the real server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fracgpu.k8s import quantity
from fracgpu.k8s.selectors import label_selector
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import StatusCause
from simulator.apiserver.registry import schemas
from simulator.apiserver.registry.defaults import containers_of, pod_specs
from simulator.objects import Json, encode, labels, thaw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.apiserver.apimachinery.resources import Resource

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_PATH_SEGMENT: Final = re.compile(r"[^/%]+")
_QUALIFIED: Final = re.compile(
    r"([a-zA-Z0-9]([-a-zA-Z0-9.]{0,251}[a-zA-Z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_IMMUTABLE: Final = "field is immutable"
_ANNOTATIONS_LIMIT: Final = 256 * 1024
_NAME_PART: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_POD_UPDATE: Final = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def validate_create(resource: Resource, value: Json) -> list[StatusCause]:
    """Return every fault of a new object; empty when it is valid."""
    return [*_metadata(resource, value), *_content(resource, value)]


def validate_update(resource: Resource, value: Json, before: Json) -> list[StatusCause]:
    """Return every fault of a changed object; *value* and *before* share name and uid."""
    if resource.qualified == resources.PODS.qualified:
        return [*_metadata(resource, value), *_pod_update(value["spec"], before["spec"])]
    if resource.schema is not None:
        return [*_metadata(resource, value), *schemas.faults(resource.schema, value, before)]
    if resource is resources.RESOURCE_CLAIMS:
        return [*_metadata(resource, value), *_claim_update(value, before)]
    if resource is resources.RESOURCE_SLICES:
        return [*_metadata(resource, value), *_slice_update(value["spec"], before["spec"])]
    return validate_create(resource, value)


def _claim_update(value: Json, before: Json) -> Iterator[StatusCause]:
    """Yield every fault of a changed claim: its spec never changes, nor does an allocation."""
    if value.get("spec") != before.get("spec"):
        yield _bad("spec", value.get("spec"), _IMMUTABLE)
        return
    status, old = value.get("status") or {}, (before.get("status") or {}).get("allocation")
    allocation = status.get("allocation")
    if status.get("reservedFor") and not allocation:
        yield StatusCause(
            field="status.reservedFor",
            reason="FieldValueForbidden",
            message="Forbidden: may not be specified when `allocated` is not set",
        )
    if allocation and old and allocation != old:
        yield _bad("status.allocation", allocation, _IMMUTABLE)


def _slice_update(spec: Json, before: Json) -> Iterator[StatusCause]:
    for member in ("driver", "nodeName"):
        if spec.get(member) != before.get(member):
            yield _bad(f"spec.{member}", spec.get(member), _IMMUTABLE)
    if spec["pool"].get("name") != before["pool"].get("name"):
        yield _bad("spec.pool.name", spec["pool"].get("name"), _IMMUTABLE)


def _is_extended(name: str) -> bool:
    """Report whether a resource is an extended one: whole units, never overcommitted."""
    domain, slash, _rest = name.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def _metadata(resource: Resource, value: Json) -> Iterator[StatusCause]:
    meta = value["metadata"]
    yield from _name(resource, meta["name"])
    yield from _labels("metadata.labels", meta.get("labels") or {})
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if not _QUALIFIED.fullmatch(key):
            yield _bad("metadata.annotations", key, _NAME_PART)
    size = sum(len(key) + len(text.encode()) for key, text in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        yield StatusCause(
            field="metadata.annotations",
            reason="FieldValueTooLong",
            message=f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes",
        )


def _name(resource: Resource, name: str) -> Iterator[StatusCause]:
    if resource.group == "rbac.authorization.k8s.io":
        if not _PATH_SEGMENT.fullmatch(name):
            yield _bad("metadata.name", name, "may not contain '/' or '%'")
    elif resource.plural in {"namespaces", "services"}:
        if not _LABEL.fullmatch(name):
            yield _bad("metadata.name", name, _LABEL_RULE)
    elif not _SUBDOMAIN.fullmatch(name):
        yield _bad("metadata.name", name, _SUBDOMAIN_RULE)


def _labels(field: str, found: dict[str, str]) -> Iterator[StatusCause]:
    for key, value in found.items():
        if not _QUALIFIED.fullmatch(key):
            yield _bad(field, key, _NAME_PART)
        if not _LABEL_VALUE.fullmatch(value):
            yield _bad(field, value, _VALUE_RULE)


def _content(resource: Resource, value: Json) -> Iterator[StatusCause]:
    if resource.schema is not None:
        yield from schemas.faults(resource.schema, value)
    for path, spec in pod_specs(resource, value):
        yield from _pod_spec(path, spec)
    match resource.qualified:
        case (
            resources.DEPLOYMENTS.qualified
            | resources.REPLICASETS.qualified
            | resources.STATEFULSETS.qualified
        ):
            yield from _selects_its_template(value["spec"])
        case resources.EVENTS.qualified:
            yield from _event(value)
        case _:
            pass


def _event(value: Json) -> Iterator[StatusCause]:
    about = (value.get("involvedObject") or {}).get("namespace") or "default"
    if about != value["metadata"]["namespace"]:
        yield _bad("involvedObject.namespace", about, "does not match event.namespace")


def _selects_its_template(spec: Json) -> Iterator[StatusCause]:
    selector = label_selector(spec.get("selector"))
    if selector is None:
        yield _required("spec.selector")
        return
    if not selector.requirements:
        yield _bad("spec.selector", {}, "empty selector is invalid for deployment")
    found = labels(spec["template"])
    if not selector.matches(found):
        yield _bad(
            "spec.template.metadata.labels", found, "`selector` does not match template `labels`"
        )


def _pod_spec(path: str, spec: Json) -> Iterator[StatusCause]:
    if not spec.get("containers"):
        yield _required(f"{path}.containers")
    names: set[str] = set()
    for where, container in containers_of(spec):
        field = f"{path}.{where}"
        name = container.get("name")
        if not name:
            yield _required(f"{field}.name")
        elif not _LABEL.fullmatch(name):
            yield _bad(f"{field}.name", name, _LABEL_RULE)
        elif name in names:
            yield _duplicate(f"{field}.name", name)
        names.add(name or "")
        if not container.get("image"):
            yield _required(f"{field}.image")
        yield from _demands(f"{field}.resources", container.get("resources") or {})


def _demands(field: str, demands: Json) -> Iterator[StatusCause]:
    limits, requests = demands.get("limits") or {}, demands.get("requests") or {}
    for member, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(f"{field}.{member}[{name}]", name, amount)
    for name, asked in requests.items():
        limit = limits.get(name)
        if limit is None:
            if _is_extended(name):
                yield _required(
                    f"{field}.limits", "Limit must be set for non overcommitable resources"
                )
        elif _is_extended(name) and quantity.parse(asked) != quantity.parse(limit):
            yield _bad(f"{field}.requests", asked, f"must be equal to {name} limit of {limit}")
        elif quantity.parse(asked) > quantity.parse(limit):
            yield _bad(
                f"{field}.requests", asked, f"must be less than or equal to {name} limit of {limit}"
            )


def _amount(field: str, name: str, amount: str) -> Iterator[StatusCause]:
    value = quantity.parse(amount)
    standard = name in {"cpu", "memory", "ephemeral-storage"} or name.startswith("hugepages-")
    if not standard and "/" not in name:
        yield _bad(field, name, "must be a standard resource type or fully qualified")
        yield _bad(field, name, "must be a standard resource for containers")
    if value < 0:
        yield _bad(field, amount, "must be greater than or equal to 0")
    if _is_extended(name) and value.denominator != 1:
        yield _bad(field, amount, "must be an integer")


def _pod_update(new: Json, old: Json) -> Iterator[StatusCause]:
    copy = thaw(new)
    for member in ("containers", "initContainers"):
        for mine, theirs in zip(copy.get(member) or [], old.get(member) or [], strict=False):
            mine["image"] = theirs.get("image")
    for mutable in ("activeDeadlineSeconds",):
        _take(copy, old, mutable)
    if all(
        toleration in (new.get("tolerations") or []) for toleration in old.get("tolerations") or []
    ):
        _take(copy, old, "tolerations")
    if all(gate in (old.get("schedulingGates") or []) for gate in new.get("schedulingGates") or []):
        _take(copy, old, "schedulingGates")
    if copy != old:
        yield StatusCause(field="spec", reason="FieldValueForbidden", message=_POD_UPDATE)


def _take(new: Json, old: Json, member: str) -> None:
    new.pop(member, None)
    if member in old:
        new[member] = old[member]


def _required(field: str, detail: str = "") -> StatusCause:
    """Return that a field is missing."""
    message = f"Required value: {detail}" if detail else "Required value"
    return StatusCause(field=field, reason="FieldValueRequired", message=message)


def _bad(field: str, value: object, detail: str) -> StatusCause:
    """Return that a field has a value that it must not have."""
    shown = encode(value).decode()
    return StatusCause(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {shown}: {detail}"
    )


def _duplicate(field: str, value: str) -> StatusCause:
    """Return that a list has an item twice."""
    return StatusCause(
        field=field, reason="FieldValueDuplicate", message=f'Duplicate value: "{value}"'
    )
