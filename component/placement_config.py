"""The key ``placement`` of the ConfigMap: which of several fitting cards is the best one."""

from typing import Final

from component.config_keys import PLACEMENT, read_strategy
from component.config_watcher import strict_mapping
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy

KEY: Final = PLACEMENT

DEFAULT: Final = DEFAULT_STRATEGY


def parse_strategy(text: str) -> Strategy:
    """Read the cluster's default strategy from ``strategy: least-waste``.

    The scheduler and the rebalancer read it by the same rules, or a move would be proven by another
    strategy than places it. The scheduler tells the administrator about mistakes.

    Raises:
        ValueError: anything that is not understood; the message says what was wanted.
    """
    return read_strategy(strict_mapping(text))
