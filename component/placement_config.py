"""The key ``placement`` of the ConfigMap: how a card is chosen among several that fit."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from component.config_keys import PLACEMENT
from component.config_watcher import ConfigWatcher, strict_mapping
from component.metrics import ConfigMetrics
from fracgpu.errors import shorten
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.spelling import nearest, unknown_keys
from kube.client import KubeClient

KEY: Final = PLACEMENT

_STRATEGY: Final = "strategy"
_OVERCOMMIT: Final = "overcommit"
NO_OVERCOMMIT: Final = Fraction(1)
_MOST_OVERCOMMIT: Final = 10

_MOST_SHOWN: Final = 60


def parse_strategy(text: str) -> Strategy:
    """Parse the cluster's default strategy from a text such as ``strategy: least-waste``.

    The scheduler and the rebalancer share this parser, so that a move is simulated with the
    strategy that will place its pod. The scheduler reports mistakes to the administrator.

    Raises:
        ValueError: the message lists every mistake: unknown keys, an unknown strategy, and what is
            no overcommitment.
    """
    placement = strict_mapping(text)
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
        near = nearest(value.lower(), known) if isinstance(value, str) else ""
        hint = f"; did you mean {near}?" if near else ""
        mistakes.append(f"{_STRATEGY} is {_shown(value)}; want one of {', '.join(known)}{hint}")
    if mistakes or found is None:
        raise ValueError("; ".join(mistakes))
    return found


def parse_overcommit(text: str) -> Fraction:
    """Parse how many times a card's capacity the limits of its containers may add up to.

    The node agents read it; the scheduler reports mistakes to the administrator.

    Raises:
        ValueError: it is no number, or too small or too large a one, or *text* is no mapping.
    """
    placement = strict_mapping(text)
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


def _shown(value: object) -> str:
    return shorten(value if isinstance(value, str) else repr(value), limit=_MOST_SHOWN)


def placement_schema() -> dict[str, Any]:
    """Return the JSON schema of what `parse_strategy` reads, for the values of the Helm chart."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            _STRATEGY: {"enum": [strategy.value for strategy in Strategy]},
            _OVERCOMMIT: {"type": "number", "minimum": 1, "maximum": _MOST_OVERCOMMIT},
        },
    }


def watch_overcommit(
    client: KubeClient, *, name: str, namespace: str, on_change: Callable[[Fraction], None]
) -> ConfigWatcher[Fraction]:
    """Return the watcher of the same key for :func:`parse_overcommit`."""
    return ConfigWatcher(
        client,
        name=name,
        namespace=namespace,
        key=KEY,
        parse=parse_overcommit,
        default=NO_OVERCOMMIT,
        on_change=on_change,
    )


def watch_strategy(
    client: KubeClient,
    *,
    name: str,
    namespace: str,
    metrics: ConfigMetrics,
    on_refused: Callable[[str], None] | None = None,
) -> ConfigWatcher[Strategy]:
    """Return the watcher of the key in a ConfigMap; without the key the strategy is the default."""
    return ConfigWatcher(
        client,
        name=name,
        namespace=namespace,
        key=KEY,
        parse=parse_strategy,
        default=DEFAULT_STRATEGY,
        on_refused=on_refused,
        metrics=metrics,
    )
