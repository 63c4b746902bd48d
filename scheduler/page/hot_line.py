"""Above which share a card counts as hot: the rebalancer's line, read from its configuration."""

from typing import Final

from component.config_watcher import strict_mapping
from fracgpu.disruption.aggressiveness import LEVELS, policy_at
from fracgpu.disruption.policy import RebalancerPolicy

DEFAULT: Final = RebalancerPolicy().hot_ratio


def parse_hot_ratio(text: str) -> float:
    """Return the line, 0..1, from the text under the key ``rebalancer``.

    The rebalancer itself judges the whole text and reports mistakes; here the rest is skipped.

    Raises:
        ValueError: the text is no mapping, or its hotRatio no number from 0 to 1.
    """
    written = strict_mapping(text)
    level = written.get("aggressiveness")
    default = policy_at(level).hot_ratio if level in LEVELS else DEFAULT
    found = written.get("hotRatio", default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
        raise ValueError(f"hotRatio is {found!r}; want a number from 0 to 1")
    return float(found)
