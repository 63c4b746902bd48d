"""Durations as kubectl shows them.

Source: k8s.io/apimachinery pkg/util/duration (HumanDuration).
"""

from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY


def human_duration(seconds: float) -> str:
    """Return a duration with two units at most: ``90s``, ``5m3s``, ``3h10m``, ``2d4h``."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    for below, unit, name, smaller, smaller_name in _STEPS:
        if whole < below:
            return _shown(whole, unit, name, smaller, smaller_name)
    return f"{whole // _YEAR}y"


# Below this duration it is shown in this unit, with the rest in a smaller one (0: without it).
_STEPS: Final = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def _shown(whole: int, unit: int, name: str, smaller: int, smaller_name: str) -> str:
    count, rest = divmod(whole, unit)
    text = f"{count}{name}"
    if smaller and rest // smaller:
        text += f"{rest // smaller}{smaller_name}"
    return text
