"""The key ``placement`` of the ConfigMap: which of several fitting cards is the best one."""

from typing import Final

from fracgpu.config import DEFAULT_STRATEGY, PLACEMENT, read_strategy
from fracgpu.request.need import Strategy
from kube.follow import strict_mapping

KEY: Final = PLACEMENT
DEFAULT: Final = DEFAULT_STRATEGY


def parse_strategy(text: str) -> Strategy:
    """Read the cluster's default strategy from ``strategy: least-waste``.

    Raises:
        ValueError: anything that is not understood; the message says what was wanted.
    """
    return read_strategy(strict_mapping(text))
