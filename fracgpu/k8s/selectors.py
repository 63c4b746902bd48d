"""Label selectors: query strings, and the LabelSelector objects of specs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SET: Final = re.compile(r"\s*(?P<key>[^\s!=<>(),]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")

_EQUAL: Final = re.compile(
    r"\s*(?P<key>[^\s!=<>(),]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()=!<>]*)"
)

_COMPARE: Final = re.compile(r"\s*(?P<key>[^\s!=<>(),]+)\s*(?P<op>[<>])\s*(?P<value>-?[0-9]+)")

_EXISTS: Final = re.compile(r"\s*(?P<op>!?)\s*(?P<key>[^\s!=<>(),]+)")

_SEPARATOR: Final = re.compile(r"\s*(,|$)")

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,63}")  # a label's value has no more characters
_INT64: Final = 2**63


class SelectorExpressionJson(msgspec.Struct, frozen=True):
    """The JSON of a ``LabelSelectorRequirement``."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class LabelSelectorJson(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of a ``LabelSelector``."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[SelectorExpressionJson, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One term of a selector; operators are those of LabelSelectorRequirement plus Gt and Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, found: Mapping[str, str]) -> bool:
        """Report whether labels meet it.

        Raises:
            ValueError: the operator is unknown.
        """
        holds = operator_holds(self.operator, found.get(self.key), self.values)
        if holds is None:
            raise ValueError(f'"{self.operator}" is not a valid label selector operator')
        return holds


def operator_holds(operator: str, value: str | None, values: Sequence[str]) -> bool | None:
    """Report whether an operator holds for a label's value; None for an unknown operator.

    Args:
        operator: as in a LabelSelectorRequirement, or Gt or Lt, which only nodes' labels have.
        value: None for an absent label.
        values: of the requirement.
    """
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":  # an absent label is not in any set
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(operator, value, values)
        case _:
            return None


def _compares(operator: str, value: str | None, values: Sequence[str]) -> bool:
    have = label_number(value or "")
    limit = label_number(values[0]) if values else None
    if have is None or limit is None:
        return False
    return have > limit if operator == "Gt" else have < limit


def label_number(text: str) -> int | None:
    """Return the number that Gt and Lt compare; None for a text that they do not take for one.

    Source: apimachinery, pkg/labels/selector.go, which calls ``strconv.ParseInt(text, 10, 64)``.
    """
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; an empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, found: Mapping[str, str]) -> bool:
        return all(requirement.matches(found) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a ``labelSelector`` query.

    Raises:
        ValueError: *text* is not a selector; the message quotes it.
    """
    requirements = []
    rest = text
    while rest.strip():
        requirement, rest = _term(rest, selector=text)
        requirements.append(requirement)
    return LabelSelector(tuple(requirements))


def _term(text: str, *, selector: str) -> tuple[Requirement, str]:
    for pattern in (_SET, _EQUAL, _COMPARE, _EXISTS):
        match = pattern.match(text)
        end = match and _SEPARATOR.match(text, match.end())
        if match and end:
            rest = text[end.end() :]
            if end[1] and not rest.strip():
                break  # a comma with nothing after it
            return _requirement(match), rest
    raise ValueError(f"unable to parse requirement: {text.strip()!r} in selector {selector!r}")


def _requirement(match: re.Match[str]) -> Requirement:
    groups = match.groupdict()
    match groups["op"]:
        case "in" | "notin":
            values = tuple(value.strip() for value in groups["values"].split(","))
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


def label_selector(spec: Mapping[str, Any] | None) -> LabelSelector | None:
    """Parse a LabelSelector object; None (a nil selector) selects nothing, an empty one everything.

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
