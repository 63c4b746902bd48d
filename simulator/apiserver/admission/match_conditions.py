"""CEL match conditions of webhooks.

The ``cel`` library knows the standard functions and macros; ``join`` and ``findAll`` are added.
Other functions of Kubernetes' own (optional fields ``.?``, ``quantity()``, ``authorizer``) it does
not know: a condition that needs those fails, and is never skipped.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import cel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.objects import Json

_VARIABLES: Final = frozenset({"object", "oldObject", "request"})


class ConditionError(Exception):
    """A condition could not be evaluated on this request."""


def all_hold(conditions: Sequence[Json], variables: Mapping[str, Any]) -> bool:
    """Report whether all conditions hold over ``object``, ``oldObject`` and ``request``.

    One false condition decides, even when another cannot be evaluated, as in the real server.

    Raises:
        ConditionError: none is false, and one failed.
    """
    known = context({name: variables.get(name) for name in _VARIABLES})
    failed: list[str] = []
    for condition in conditions:
        try:
            value = _compiled(condition["expression"]).execute(known)
        except (RuntimeError, TypeError, KeyError, ValueError, IndexError) as error:
            failed.append(f"{condition.get('name')}: {error}")
            continue
        if value is False:
            return False
        if value is not True:
            failed.append(f"{condition.get('name')}: must evaluate to bool, got {value!r}")
    if failed:
        raise ConditionError("; ".join(failed))
    return True


def context(variables: Mapping[str, Any]) -> cel.Context:
    """Return *variables* and the functions of Kubernetes' libraries that we have, to evaluate with.

    Source: cel-go's ext.Strings; k8s.io/apiserver pkg/cel/library/regex.go.
    """
    functions: dict[str, Callable[..., Any]] = {"join": _join, "findAll": _find_all}
    return cel.Context(variables=dict(variables), functions=functions)


def _join(parts: Sequence[str], separator: str = "") -> str:
    return separator.join(parts)


def _find_all(text: str, pattern: str) -> list[str]:
    return [found.group() for found in re.finditer(pattern, text)]


@functools.lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:
    return cel.compile(expression)
