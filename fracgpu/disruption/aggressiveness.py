"""One dial for the whole policy: each level sets the values in proportion to their defaults.

Level 3 is the defaults, whatever they are. Values that are compared with each other have the same
factors, so that a level never contradicts itself; what is not listed here says how things are
measured, or how long the API server may take, and is the same at every level.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fracgpu.disruption.policy import RebalancerPolicy, Tunable, tunables

LEVELS: Final = (1, 2, 3, 4, 5)
DEFAULT_LEVEL: Final = 3

_Factors = tuple[float, float, float, float, float]

_LINES: Final[_Factors] = (1.1, 1.05, 1, 0.95, 0.9)  # hot, clear and ceiling keep their distances
_WINDOWS: Final[_Factors] = (2, 1.5, 1, 0.75, 0.5)
_SHARES: Final[_Factors] = (1.15, 1.1, 1, 0.95, 0.85)
_WAITS: Final[_Factors] = (4, 2, 1, 0.5, 0.25)
_COUNTS: Final[_Factors] = (0.34, 0.5, 1, 2, 4)
_TOLERANCES: Final[_Factors] = (0.5, 0.5, 1, 1.5, 2)

_FACTORS: Final[Mapping[str, _Factors]] = {
    "startup_grace_s": (3, 2, 1, 1, 0.5),
    "hot_ratio": _LINES,
    "clear_ratio": _LINES,
    "ceiling_ratio": _LINES,
    "fast_window_s": _WINDOWS,
    "slow_window_s": _WINDOWS,
    "forecast_window_s": _WINDOWS,
    "memory_window_s": _WINDOWS,
    "fast_hot_ratio": _SHARES,
    "slow_hot_ratio": _SHARES,
    "hold_cycles": (4, 2, 1, 1, 0),
    "settle_s": _WINDOWS,
    "fresh_cards_ratio": (1.15, 1.1, 1, 1, 1),
    "coverage_ratio": (1.1, 1.05, 1, 1, 1),
    "free_margin_mib": (4, 2, 1, 1, 0.5),
    "min_pod_busy_ratio": (1.5, 1.25, 1, 0.75, 0.5),
    "attribution_ratio": (1.3, 1.15, 1, 0.9, 0.8),
    "min_pod_age_s": _WAITS,
    "max_in_flight": (1, 1, 1, 2, 4),
    "max_in_flight_per_node": (1, 1, 1, 1, 2),
    "max_per_hour": _COUNTS,
    "max_per_day": _COUNTS,
    "max_per_namespace_per_hour": _COUNTS,
    "max_per_owner_per_hour": _COUNTS,
    "max_per_owner_per_day": _COUNTS,
    "max_per_pod_per_hour": (1, 1, 1, 1, 2),
    "owner_cooldown_s": _WAITS,
    "give_up_cooldown_s": _WAITS,
    "card_cooldown_s": (3, 2, 1, 0.75, 0.5),
    "return_cooldown_s": (4, 2, 1, 1, 0.5),
    "max_cordoned_ratio": (0.4, 0.6, 1, 1.2, 1.6),
    "breaker_window_s": (2, 2, 1, 1, 1),
    "breaker_aborts": _TOLERANCES,
    "breaker_api_errors": _TOLERANCES,
    "breaker_lost_s": (2, 1, 1, 1, 0.5),
    "breaker_blind_s": (0.5, 1, 1, 1, 2),
}


def policy_at(level: int) -> RebalancerPolicy:
    """Return the policy of a level, 1 (hardly ever moves) to 5."""
    assert level in LEVELS, f"aggressiveness {level}"
    values: dict[str, Any] = {
        tunable.name: _value(tunable, _FACTORS[tunable.name][level - 1])
        for tunable in tunables()
        if tunable.name in _FACTORS
    }
    return replace(RebalancerPolicy(), aggressiveness=level, **values)


def _value(tunable: Tunable, factor: float) -> float:
    """Return the default times *factor* within the range; 1 is the default exactly."""
    if factor == 1:
        return tunable.default
    scaled = min(max(tunable.default * factor, tunable.low), tunable.high)
    if tunable.integer:
        return round(scaled)
    return float(f"{scaled:.4g}")
