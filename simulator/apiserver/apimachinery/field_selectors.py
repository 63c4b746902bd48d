"""Label and field selectors, as query strings and as the LabelSelector objects of specs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json

_SET: Final = re.compile(r"\s*(?P<key>[^\s!=<>(),]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL: Final = re.compile(
    r"\s*(?P<key>[^\s!=<>(),]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()=!<>]*)"
)
_COMPARE: Final = re.compile(r"\s*(?P<key>[^\s!=<>(),]+)\s*(?P<op>[<>])\s*(?P<value>-?[0-9]+)")
_EXISTS: Final = re.compile(r"\s*(?P<op>!?)\s*(?P<key>[^\s!=<>(),]+)")
_SEPARATOR: Final = re.compile(r"\s*(,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One term of a selector; operators are those of LabelSelectorRequirement plus Gt and Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, found: Mapping[str, str]) -> bool:
        value = found.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":  # an absent label is not in any set
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _compares(value, self.operator, self.values[0])
            case _:
                raise ValueError(f'"{self.operator}" is not a valid label selector operator')


def _compares(value: str | None, operator: str, bound: str) -> bool:
    try:
        number = int(value) if value is not None else None
    except ValueError:
        return False
    if number is None:
        return False
    return number > int(bound) if operator == "Gt" else number < int(bound)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; without any it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, found: Mapping[str, str]) -> bool:
        return all(requirement.matches(found) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Read a ``labelSelector`` query.

    Raises:
        ValueError: it is not one; the message quotes it.
    """
    requirements = []
    rest = text
    while rest.strip():
        requirement, rest = _term(rest, whole=text)
        requirements.append(requirement)
    return LabelSelector(tuple(requirements))


def _term(text: str, *, whole: str) -> tuple[Requirement, str]:
    for pattern in (_SET, _EQUAL, _COMPARE, _EXISTS):
        match = pattern.match(text)
        end = match and _SEPARATOR.match(text, match.end())
        if match and end:
            rest = text[end.end() :]
            if end[1] and not rest.strip():
                break  # a comma with nothing after it
            return _requirement(match), rest
    raise ValueError(f"unable to parse requirement: {text.strip()!r} in selector {whole!r}")


def _requirement(match: re.Match[str]) -> Requirement:
    groups = match.groupdict()
    match groups["op"]:
        case "in" | "notin":
            values = tuple(v.strip() for v in groups["values"].split(","))
            operator = "In" if groups["op"] == "in" else "NotIn"
            return Requirement(key=groups["key"], operator=operator, values=values)
        case "=" | "==":
            return Requirement(key=groups["key"], operator="In", values=(groups["value"],))
        case "!=":
            return Requirement(key=groups["key"], operator="NotIn", values=(groups["value"],))
        case ">" | "<":
            operator = "Gt" if groups["op"] == ">" else "Lt"
            return Requirement(key=groups["key"], operator=operator, values=(groups["value"],))
        case "!":
            return Requirement(key=groups["key"], operator="DoesNotExist")
        case _:
            return Requirement(key=groups["key"], operator="Exists")


def label_selector(spec: Json | None) -> LabelSelector | None:
    """Read a LabelSelector object; None (a nil selector) selects nothing, an empty one everything.

    Raises:
        ValueError: an operator is unknown.
    """
    if spec is None:
        return None
    requirements = [
        Requirement(key=key, operator="In", values=(value,))
        for key, value in sorted((spec.get("matchLabels") or {}).items())
    ]
    for term in spec.get("matchExpressions") or []:
        if term.get("operator") not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            raise ValueError(f'"{term.get("operator")}" is not a valid label selector operator')
        requirements.append(
            Requirement(
                key=term["key"], operator=term["operator"], values=tuple(term.get("values") or ())
            )
        )
    return LabelSelector(tuple(requirements))


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
}  # fmt: skip
_ALWAYS: Final = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Equalities and inequalities on fields; each is (path, wanted value, must be equal)."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, found: Json) -> bool:
        return all((_field(found, path) == value) is equal for path, value, equal in self.terms)


def parse_field_selector(text: str, resource: Resource) -> FieldSelector:
    """Read a ``fieldSelector`` query.

    Raises:
        ValueError: it cannot be read, or the resource cannot be selected by that field.
    """
    allowed = _ALWAYS | _FIELDS.get(resource.storage, frozenset())
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
