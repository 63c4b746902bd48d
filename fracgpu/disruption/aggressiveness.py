"""One dial for the whole policy: each level sets the values in proportion to their defaults.

Level 3 is the defaults, whatever they are. What is not listed here says how things are measured, or
how long the API server may take, and is the same at every level.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fracgpu.disruption.policy import RebalancerPolicy

LEVELS: Final = (1, 2, 3, 4, 5)
DEFAULT_LEVEL: Final = 3

_Factors = tuple[float, float, float, float, float]

# The windows, and what is compared with them, keep their proportions.
_WINDOWS: Final[_Factors] = (2, 1.5, 1, 0.75, 0.5)
_SHARES: Final[_Factors] = (1.15, 1.1, 1, 0.95, 0.85)
_WAITS: Final[_Factors] = (4, 2, 1, 0.5, 0.25)
_COUNTS: Final[_Factors] = (0.34, 0.5, 1, 2, 4)

DIAL: Final[Mapping[str, tuple[str, _Factors]]] = {
    "hot_ratio": ("a sample is hot above (`hotRatio`)", (1.1, 1.05, 1, 0.95, 0.9)),
    "fast_window_s": ("the short window", _WINDOWS),
    "fast_hot_ratio": ("share of its samples that must be hot", _SHARES),
    "slow_window_s": ("the long window", _WINDOWS),
    "slow_hot_ratio": ("share of its samples that must be hot", _SHARES),
    "forecast_window_s": ("how long a target must have been measured", _WINDOWS),
    "memory_window_s": ("how far back loads are remembered", _WINDOWS),
    "settle_s": ("how long a relieved card must be calm", _WINDOWS),
    "max_cordoned_ratio": (
        "share of all cards that may be closed at once",
        (0.4, 0.6, 1, 1.2, 1.6),
    ),
    "min_pod_busy_ratio": ("pods that use less of a card are not moved", (1.5, 1.25, 1, 0.75, 0.5)),
    "min_pod_age_s": ("pods that have run for less are not moved", _WAITS),
    "max_in_flight": ("moves at once (`maxInFlight`)", _COUNTS),
    "max_per_hour": ("moves in any hour (`maxPerHour`)", _COUNTS),
    "max_per_day": ("moves in any day (`maxPerDay`)", _COUNTS),
    "max_per_namespace_per_hour": ("moves of one namespace in any hour", _COUNTS),
    "make_room_moves": ("moves that make room for one pod", (0.38, 0.75, 1, 1, 1)),
    "max_per_owner_per_day": ("moves of one owner in any day", _COUNTS),
    "owner_cooldown_s": ("between two moves of one owner, doubled after each useless one", _WAITS),
    "card_cooldown_s": ("between two moves off, or onto, one card", (3, 2, 1, 0.75, 0.5)),
    "return_cooldown_s": ("how long an owner is not moved back to a card", (4, 2, 1, 1, 0.5)),
}
"""What the dial sets, with its meaning for the documentation."""


def policy_at(level: int, *, base: RebalancerPolicy | None = None) -> RebalancerPolicy:
    """Return the policy of a level, 1 (hardly ever moves) to 5, in proportion to *base*."""
    assert level in LEVELS, f"aggressiveness {level}"
    base = base or RebalancerPolicy()
    values: dict[str, Any] = {
        name: _times(getattr(base, name), factors[level - 1]) for name, (_, factors) in DIAL.items()
    }
    return replace(base, aggressiveness=level, **values)


def _times(value: float, factor: float) -> float:
    """Return a value times *factor*, whole if it is; 1 is the value exactly."""
    if factor == 1:
        return value
    scaled = value * factor
    return max(1, round(scaled)) if isinstance(value, int) else float(f"{scaled:.4g}")
