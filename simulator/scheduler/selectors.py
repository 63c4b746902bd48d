"""The CEL expressions on devices that this scheduler evaluates: conjunctions of a few comparisons.

They mean what they mean in CEL, errors included: a missing attribute is an error, unless another
part of the conjunction is false. Every other expression is refused, never guessed.
Source: k8s.io/dynamic-resource-allocation cel, and the CEL language definition.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fracgpu.k8s import quantity

if TYPE_CHECKING:
    from simulator.objects import Json

_TEXT: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^'"\\]*')"""
_COMPARISON: Final = re.compile(
    rf"""
      device\.driver\ ==\ (?P<driver>{_TEXT})
    | (?P<present>{_TEXT})\ in\ device\.attributes\[(?P<present_domain>{_TEXT})\]
    | (?P<not>!?)device\.attributes\[(?P<domain>{_TEXT})\]\.(?P<attribute>\w+)
      (?: \ ==\ (?P<equal>{_TEXT})
        | \ in\ (?P<among>\[(?:{_TEXT}(?:,\s*{_TEXT})*)?\])
        | \.contains\((?P<contains>{_TEXT})\)
        | \.lowerAscii\(\)\.matches\((?P<matches>{_TEXT})\) )
    | !\(device\.attributes\[(?P<not_domain>{_TEXT})\]\.(?P<not_attribute>\w+)
      \ in\ (?P<not_among>\[(?:{_TEXT}(?:,\s*{_TEXT})*)?\])\)
    | device\.capacity\[(?P<capacity_domain>{_TEXT})\]\.(?P<capacity>\w+)
      \.compareTo\(quantity\((?P<amount>{_TEXT})\)\)\ (?P<order><=|>=|<|>)\ 0
    """,
    re.VERBOSE,
)
_AND: Final = " && "
_ORDERS: Final = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}

# Of a driver and one of its devices; raises CelError.
_Test: TypeAlias = Callable[[str, "Json"], bool]


class CelError(Exception):
    """A device cannot be told from others by an expression: kube-scheduler tries no other node."""


def selects(expression: str, driver: str, device: Json) -> bool:
    """Report whether *expression* is true of a device.

    Raises:
        CelError: it has no value for this device, or is none that is evaluated here.
    """
    failure: CelError | None = None
    for test in _parsed(expression):
        try:
            if not test(driver, device):
                return False  # what is false makes a conjunction false, whatever fails beside it
        except CelError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return True


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> tuple[_Test, ...]:
    tests, start = [], 0
    while (match := _COMPARISON.match(expression, start)) is not None:
        tests.append(_test({key: text for key, text in match.groupdict().items() if text}))
        start = match.end()
        if start == len(expression):
            return tuple(tests)
        if not expression.startswith(_AND, start):
            break
        start += len(_AND)
    raise CelError(f"this simulator does not evaluate {expression[start:]!r} in {expression!r}")


def _test(found: dict[str, str]) -> _Test:
    match found:
        case {"driver": wanted}:
            return lambda driver, _: driver == _text(wanted)
        case {"present": name, "present_domain": domain}:
            return lambda driver, device: (
                _text(name) in _members(driver, device, "attributes", domain)
            )
        case {"capacity": name, "capacity_domain": domain, "amount": amount, "order": order}:
            limit, holds = quantity.parse(_text(amount)), _ORDERS[order]
            return lambda driver, device: holds(
                quantity.parse(_member(driver, device, "capacity", domain, name)["value"]), limit
            )
        case {"not_attribute": name, "not_domain": domain, "not_among": listed}:
            test = _attribute_test({"domain": domain, "attribute": name, "among": listed})
            return lambda driver, device: not test(driver, device)
        case _:
            return _attribute_test(found)


def _attribute_test(found: dict[str, str]) -> _Test:
    match found:
        case {"equal": text}:
            holds: Callable[[str], bool] = _text(text).__eq__
        case {"among": listed}:
            holds = [_text(each) for each in re.findall(_TEXT, listed)].__contains__
        case {"contains": text}:
            part = _text(text)
            holds = lambda value: part in value  # noqa: E731 - one of four
        case _:
            pattern = re.compile(_text(found["matches"]))
            holds = lambda value: pattern.search(value.lower()) is not None  # noqa: E731
    wanted, domain, name = "not" not in found, found["domain"], found["attribute"]
    return lambda driver, device: (
        holds(_member(driver, device, "attributes", domain, name).get("string", "")) is wanted
    )


def _text(literal: str) -> str:
    """Return what a string in double or single quotes means; the former as in JSON."""
    found: str = json.loads(literal if literal[0] == '"' else f'"{literal[1:-1]}"')
    return found


def _members(driver: str, device: Json, member: str, domain: str) -> dict[str, Any]:
    """Return what a device has in a domain; names without one are in that of the driver."""
    here = _text(domain)
    found = {}
    for name, value in (device.get(member) or {}).items():
        named, slash, bare = name.rpartition("/")
        if (named if slash else driver) == here:
            found[bare] = value
    return found


def _member(driver: str, device: Json, member: str, domain: str, name: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = _members(driver, device, member, domain)[name]
    except KeyError:
        raise CelError(f"CEL runtime error: no such key: {name}") from None
    return value
