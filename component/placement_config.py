"""The key ``placement`` of the ConfigMap: how a card is chosen among several that fit."""

from typing import Final

from component.config_keys import PLACEMENT, read_strategy
from component.config_watcher import strict_mapping
from fracgpu.request.need import Strategy

KEY: Final = PLACEMENT


def parse_strategy(text: str) -> Strategy:
    """Parse the cluster's default strategy from a text such as ``strategy: least-waste``.

    The scheduler and the rebalancer share this parser, so that a move is simulated with the
    strategy that will place its pod. The scheduler reports mistakes to the administrator.

    Raises:
        ValueError: the text is invalid; the message says what was wanted.
    """
    return read_strategy(strict_mapping(text))
