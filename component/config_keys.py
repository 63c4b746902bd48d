"""The keys of the ConfigMap, and the parser of ``placement``, which several roles read."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from fracgpu.errors import shorten
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.spelling import nearest, unknown_keys

ADMISSION: Final = "admission"

PLACEMENT: Final = "placement"

REBALANCER: Final = "rebalancer"

POOLS: Final = "pools"

WIRING: Final = "wiring"

KEYS: Final = (ADMISSION, PLACEMENT, POOLS, REBALANCER, WIRING)

_STRATEGY: Final = "strategy"
_OVERCOMMIT: Final = "overcommit"
NO_OVERCOMMIT: Final = Fraction(1)
_MOST_OVERCOMMIT: Final = 10

_MOST_SHOWN: Final = 60


def refuse_unknown_keys(keys: Iterable[str]) -> None:
    """Raise if the ConfigMap has keys that no role reads.

    Raises:
        ValueError: the message lists the first few, the likely meant keys, and how many more.
    """
    mistakes = unknown_keys(keys, KEYS)
    if mistakes:
        raise ValueError(f"{'; '.join(mistakes)}; want only {', '.join(KEYS)}")


def read_strategy(placement: Mapping[str, object]) -> Strategy:
    """Parse the cluster's strategy from the mapping under ``placement``.

    Raises:
        ValueError: the message lists every mistake: unknown keys, an unknown strategy, and what is
            no overcommitment.
    """
    mistakes = unknown_keys(placement, (_STRATEGY, _OVERCOMMIT))
    if mistakes:
        mistakes[-1] += f"; want only {_STRATEGY}, {_OVERCOMMIT}"
    if _overcommit(placement) is None:
        mistakes.append(
            f"{_OVERCOMMIT} is {_shown(placement[_OVERCOMMIT])}; want a number from 1 to "
            f"{_MOST_OVERCOMMIT}, e.g. 1.5"
        )
    value = placement.get(_STRATEGY, DEFAULT_STRATEGY.value)
    found = next((strategy for strategy in Strategy if strategy.value == value), None)
    if found is None:
        known = [strategy.value for strategy in Strategy]
        near = _nearest(value, known) if isinstance(value, str) else ""
        mistakes.append(f"{_STRATEGY} is {_shown(value)}; want one of {', '.join(known)}{near}")
    if mistakes or found is None:
        raise ValueError("; ".join(mistakes))
    return found


def read_overcommit(placement: Mapping[str, object]) -> Fraction:
    """Parse how many times a card's capacity the limits of its containers may add up to.

    Raises:
        ValueError: it is no number, or too small or too large a one.
    """
    found = _overcommit(placement)
    if found is None:
        raise ValueError(f"{_OVERCOMMIT} is {_shown(placement[_OVERCOMMIT])}")
    return found


def _overcommit(placement: Mapping[str, object]) -> Fraction | None:
    value = placement.get(_OVERCOMMIT, 1)
    # bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Fraction(str(value)) if 1 <= value <= _MOST_OVERCOMMIT else None


def placement_schema() -> dict[str, Any]:
    """Return the JSON schema of what `read_strategy` reads, for the values of the Helm chart."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            _STRATEGY: {"enum": [strategy.value for strategy in Strategy]},
            _OVERCOMMIT: {"type": "number", "minimum": 1, "maximum": _MOST_OVERCOMMIT},
        },
    }


def _nearest(key: str, known: Iterable[str]) -> str:
    near = nearest(key.lower(), known)
    return f"; did you mean {near}?" if near else ""


def _shown(value: object) -> str:
    return shorten(value if isinstance(value, str) else repr(value), limit=_MOST_SHOWN)
