"""The columns that kubectl shows of each kind, and the cells of an object.

Source: k8s.io/kubernetes pkg/printers/internalversion/printers.go, and for custom resources
k8s.io/apiextensions-apiserver pkg/registry/customresource/tableconvertor. Kinds that have no
printer here get the two columns that the API server gives to kinds without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from simulator.apiserver.endpoints.ages import human_duration
from simulator.apiserver.endpoints.pod_cells import pod_cells
from simulator.objects import Json

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource

_WIDE: Final = 1
_UNKNOWN: Final = "<unknown>"
_NONE: Final = "<none>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; kubectl shows those with a priority above 0 only with ``-o wide``."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0

    @property
    def body(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": "",
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """The columns of a kind and the function that fills them, given an object and the time."""

    columns: Sequence[Column]
    cells: Callable[[Json, datetime], Sequence[Any]]


def printer_of(resource: Resource) -> Printer:
    """Return the printer of a resource."""
    if resource.schema is not None:
        return _custom(resource)
    return _PRINTERS.get((resource.group, resource.plural), _OTHERS)


def age(text: str | None, now: datetime) -> str:
    """Return how long ago *text* was, as kubectl shows it."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return _UNKNOWN
    return human_duration((now - moment.astimezone(UTC)).total_seconds())


def _columns(*words: str) -> tuple[Column, ...]:
    """Return columns: ``name:integer`` has a type, ``+name`` is shown only when wide."""
    found = []
    for word in words:
        name, _, kind = word.lstrip("+").partition(":")
        found.append(
            Column(
                name=name,
                type=kind or "string",
                format="name" if name == "Name" else "",
                priority=_WIDE if word.startswith("+") else 0,
            )
        )
    return tuple(found)


def _name(value: Json) -> str:
    name: str = value["metadata"]["name"]
    return name


def _created(value: Json, now: datetime) -> str:
    return age(value["metadata"].get("creationTimestamp"), now)


def _node(value: Json, now: datetime) -> Sequence[Any]:
    status = value.get("status") or {}
    info = status.get("nodeInfo") or {}
    ready = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    words = ["Ready" if one["status"] == "True" else "NotReady" for one in ready] or ["Unknown"]
    if (value.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    kernel = info.get("kernelVersion") or _UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return (
        *(_name(value), ",".join(words), _node_roles(value), _created(value, now)),
        *(info.get("kubeletVersion", ""), _address(status, "InternalIP")),
        *(_address(status, "ExternalIP"), info.get("osImage") or _UNKNOWN, kernel),
        info.get("containerRuntimeVersion") or _UNKNOWN,
    )


def _node_roles(value: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = value["metadata"].get("labels") or {}
    found = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)} - {""}
    return ",".join(sorted(found)) or _NONE


def _address(status: Json, kind: str) -> str:
    found = [one["address"] for one in status.get("addresses") or () if one["type"] == kind]
    return found[0] if found else _NONE


def _template(value: Json) -> tuple[str, str]:
    containers = value["spec"].get("template", {}).get("spec", {}).get("containers") or ()
    names = ",".join(one["name"] for one in containers)
    return names, ",".join(one.get("image", "") for one in containers)


def _selector(value: Json) -> str:
    wanted = (value["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={wanted[key]}" for key in sorted(wanted)) or _NONE


def _deployment(value: Json, now: datetime) -> Sequence[Any]:
    spec, status = value["spec"], value.get("status") or {}
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    counts = (status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
    return _name(value), ready, *counts, _created(value, now), *_template(value), _selector(value)


def _replicaset(value: Json, now: datetime) -> Sequence[Any]:
    spec, status = value["spec"], value.get("status") or {}
    counts = (spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0))
    return _name(value), *counts, _created(value, now), *_template(value), _selector(value)


def _statefulset(value: Json, now: datetime) -> Sequence[Any]:
    spec, status = value["spec"], value.get("status") or {}
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    return _name(value), ready, _created(value, now), *_template(value)


def _job(value: Json, now: datetime) -> Sequence[Any]:
    spec, status = value["spec"], value.get("status") or {}
    held = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    words = {"Complete": "Complete", "Failed": "Failed", "Suspended": "Suspended"}
    shown = next((word for kind, word in words.items() if kind in held), "Running")
    wanted = spec.get("completions")
    done = f"{status.get('succeeded', 0)}/{1 if wanted is None else wanted}"
    began, ended = status.get("startTime"), status.get("completionTime")
    until = datetime.fromisoformat(ended) if ended else now
    lasted = age(began, until) if began else ""
    row = (_name(value), shown, done, lasted, _created(value, now))
    return *row, *_template(value), _selector(value)


def _event(value: Json, now: datetime) -> Sequence[Any]:
    regarding = value.get("involvedObject") or {}
    target = regarding.get("kind", "").lower()
    if regarding.get("name"):
        target = f"{target}/{regarding['name']}"
    first = age(value.get("firstTimestamp") or value.get("eventTime"), now)
    series = value.get("series") or {}
    seen = series.get("lastObservedTime") or value.get("lastTimestamp")
    source = value.get("source") or {}
    parts = (source.get("component") or value.get("reportingComponent"), source.get("host"))
    return (
        *(age(seen, now) if seen else first, value.get("type", ""), value.get("reason", "")),
        *(target, regarding.get("fieldPath", ""), ", ".join(part for part in parts if part)),
        *((value.get("message") or "").strip(), first),
        *(series.get("count") or value.get("count") or 1, _name(value)),
    )


def _budget(value: Json, now: datetime) -> Sequence[Any]:
    spec, status = value.get("spec") or {}, value.get("status") or {}
    limits = [str(spec.get(name, "N/A")) for name in ("minAvailable", "maxUnavailable")]
    return _name(value), *limits, status.get("disruptionsAllowed", 0), _created(value, now)


def _namespace(value: Json, now: datetime) -> Sequence[Any]:
    phase = (value.get("status") or {}).get("phase", "")
    return _name(value), phase, _created(value, now)


def _pod(value: Json, now: datetime) -> Sequence[Any]:
    name, ready, status, restarts, *wide = pod_cells(value, since=lambda text: age(text, now))
    return name, ready, status, restarts, _created(value, now), *wide


def _config_map(value: Json, now: datetime) -> Sequence[Any]:
    count = len(value.get("data") or ()) + len(value.get("binaryData") or ())
    return _name(value), count, _created(value, now)


def _secret(value: Json, now: datetime) -> Sequence[Any]:
    kind, count = value.get("type", "Opaque"), len(value.get("data") or ())
    return _name(value), kind, count, _created(value, now)


def _lease(value: Json, now: datetime) -> Sequence[Any]:
    holder = (value.get("spec") or {}).get("holderIdentity") or ""
    return _name(value), holder, _created(value, now)


_TEMPLATE: Final = ("+Containers", "+Images")
_PRINTERS: Final[Mapping[tuple[str, str], Printer]] = {
    ("", "pods"): Printer(
        columns=_columns(
            *("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node"),
            *("+Nominated Node", "+Readiness Gates"),
        ),
        cells=_pod,
    ),
    ("", "nodes"): Printer(
        columns=_columns(
            *("Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP"),
            *("+OS-Image", "+Kernel-Version", "+Container-Runtime"),
        ),
        cells=_node,
    ),
    ("", "namespaces"): Printer(columns=_columns("Name", "Status", "Age"), cells=_namespace),
    ("", "configmaps"): Printer(columns=_columns("Name", "Data", "Age"), cells=_config_map),
    ("", "secrets"): Printer(columns=_columns("Name", "Type", "Data", "Age"), cells=_secret),
    ("", "events"): Printer(
        columns=_columns(
            *("Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message"),
            *("+First Seen", "+Count", "+Name"),
        ),
        cells=_event,
    ),
    ("apps", "deployments"): Printer(
        columns=_columns(
            *("Name", "Ready", "Up-to-date", "Available", "Age", *_TEMPLATE, "+Selector")
        ),
        cells=_deployment,
    ),
    ("apps", "replicasets"): Printer(
        columns=_columns(
            *("Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_TEMPLATE),
            "+Selector",
        ),
        cells=_replicaset,
    ),
    ("apps", "statefulsets"): Printer(
        columns=_columns("Name", "Ready", "Age", *_TEMPLATE), cells=_statefulset
    ),
    ("batch", "jobs"): Printer(
        columns=_columns(
            *("Name", "Status", "Completions", "Duration", "Age", *_TEMPLATE, "+Selector")
        ),
        cells=_job,
    ),
    ("policy", "poddisruptionbudgets"): Printer(
        columns=_columns(
            *("Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age")
        ),
        cells=_budget,
    ),
    ("coordination.k8s.io", "leases"): Printer(
        columns=_columns("Name", "Holder", "Age"), cells=_lease
    ),
}
_OTHERS: Final = Printer(
    columns=(
        Column(name="Name", format="name"),
        Column(name="Created At", type="date"),
    ),
    cells=lambda value, _now: (_name(value), value["metadata"].get("creationTimestamp")),
)


def _custom(resource: Resource) -> Printer:
    """Return the printer that a definition's additionalPrinterColumns describe."""
    named: Sequence[Mapping[str, Any]] = resource.printer_columns or (_AGE,)
    columns = [Column(name="Name", format="name")]
    columns += [
        Column(
            name=one["name"],
            type=one["type"],
            format=one.get("format", ""),
            priority=one.get("priority", 0),
        )
        for one in named
    ]

    def cells(value: Json, now: datetime) -> Sequence[Any]:
        return _name(value), *(_custom_cell(one, value, now) for one in named)

    return Printer(columns=columns, cells=cells)


_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _custom_cell(column: Mapping[str, Any], value: Json, now: datetime) -> Any:
    found: Any = value
    for name in column["jsonPath"].strip(".").split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return age(found, now) if column["type"] == "date" and found is not None else found
