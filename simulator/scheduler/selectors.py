"""CEL expressions on devices, with what of Kubernetes' libraries is used in them.

Source: k8s.io/dynamic-resource-allocation cel; k8s.io/apiserver pkg/cel/library/quantity.go.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import cel

from fracgpu.k8s import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.objects import Json

_DOMAIN: Final = re.compile(r"device\.(?:attributes|capacity)\[[\"']([^\"']*)[\"']\]")


class CelError(Exception):
    """A device cannot be told from others by an expression: kube-scheduler tries no other node."""


def selects(expression: str, driver: str, device: Json) -> bool:
    """Report whether *expression* is true of a device.

    Raises:
        CelError: it has no value for this device, as where an attribute is missing.
    """
    named = _DOMAIN.findall(expression)
    known = {
        "driver": driver,
        "attributes": _by_domain(
            {name: _plain(value) for name, value in (device.get("attributes") or {}).items()},
            driver,
            named,
        ),
        "capacity": _by_domain(
            {
                name: _amount(value["value"])
                for name, value in (device.get("capacity") or {}).items()
            },
            driver,
            named,
        ),
    }
    context = cel.Context(variables={"device": known}, functions=_FUNCTIONS)
    try:
        found = _compiled(expression).execute(context)
    except KeyError as error:
        raise CelError(f"CEL runtime error: no such key: {error.args[0]}") from error
    except (ValueError, RuntimeError, TypeError) as error:
        raise CelError(f"CEL error in {expression!r}: {error}") from error
    if not isinstance(found, bool):
        raise CelError(f"{expression!r} is {found!r}; want a bool")
    return found


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> Any:
    return cel.compile(expression)


def _by_domain(members: dict[str, Any], driver: str, named: list[str]) -> dict[str, dict[str, Any]]:
    """Return members by domain: without one in that of the driver; a domain may have none."""
    found: dict[str, dict[str, Any]] = {domain: {} for domain in named}
    for name, value in members.items():
        domain, slash, bare = name.rpartition("/")
        found.setdefault(domain if slash else driver, {})[bare] = value
    return found


def _plain(attribute: Json) -> Any:
    (value,) = attribute.values()
    return value


def _amount(text: str) -> float:
    return float(quantity.parse(text))


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "lowerAscii": str.lower,
    "quantity": _amount,
    "compareTo": lambda one, other: (one > other) - (one < other),
}
