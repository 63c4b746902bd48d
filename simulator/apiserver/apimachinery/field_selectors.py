"""Field selectors, as query strings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json


# Which fields each resource can be selected by, beside metadata.name and metadata.namespace.
# Source: the AddFieldLabelConversionFunc tables of k8s.io/kubernetes pkg/apis.
_FIELDS: Final = {
    "pods": frozenset({
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
    }),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "events": frozenset({
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
    }),
    "replicasets.apps": frozenset({"status.replicas"}),
    "jobs.batch": frozenset({"status.successful"}),
    "resourceslices.resource.k8s.io": frozenset({"spec.nodeName", "spec.driver"}),
}  # fmt: skip

_ALWAYS: Final = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Equalities and inequalities on fields; each is (path, wanted value, must be equal)."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, found: Json) -> bool:
        return all((_field(found, path) == value) is equal for path, value, equal in self.terms)


def parse_field_selector(text: str, resource: Resource) -> FieldSelector:
    """Parse a ``fieldSelector`` query.

    Raises:
        ValueError: it cannot be read, or the resource cannot be selected by that field.
    """
    allowed = _ALWAYS | _FIELDS.get(resource.qualified, frozenset())
    terms = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(?P<path>[^=!]+?)(?P<op>==|=|!=)(?P<value>.*)", term)
        if match is None:
            raise ValueError(f"invalid field selector: {term!r}; want field=value")
        if match["path"] not in allowed:
            raise ValueError(f"field label not supported: {match['path']}")
        terms.append((match["path"], match["value"], match["op"] != "!="))
    return FieldSelector(tuple(terms))


def _field(found: Json, path: str) -> str:
    if path == "source" and isinstance(found.get("source"), dict):
        return str(found["source"].get("component", ""))
    value: Any = found
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        # A boolean that was never set reads as false in the real server's field set.
        return "false" if path in {"spec.unschedulable", "spec.hostNetwork"} else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
