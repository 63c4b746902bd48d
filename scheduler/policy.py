"""The key ``placement`` of the ConfigMap: which of several fitting cards is the best one."""

import difflib
from typing import Final

from fracgpu.request import Strategy
from kube.follow import strict_mapping

KEY: Final = "placement"
DEFAULT: Final = Strategy.LEAST_WASTE


def parse_strategy(text: str) -> Strategy:
    """Read the cluster's default strategy from ``strategy: least-waste``.

    Raises:
        ValueError: anything that is not understood; the message says what was wanted.
    """
    found = strict_mapping(text)
    for key in found:
        if key != "strategy":
            raise ValueError(f"the key {key!r} is not known; want only 'strategy'")
    value = found.get("strategy", DEFAULT.value)
    for strategy in Strategy:
        if strategy.value == value:
            return strategy
    known = [strategy.value for strategy in Strategy]
    close = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"strategy is {value!r}; want one of {', '.join(known)}{hint}")
