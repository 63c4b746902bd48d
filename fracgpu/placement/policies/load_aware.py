"""``load-aware``: a hot or warming card repels, whatever its free memory.

Cards that are hot now are cordoned by the rebalancer and never get here. This is about the ones on
their way there, by the heat that is published on the node.
"""

from typing import Final

from fracgpu.placement.policies.scoring import F

LINKED: Final = False

# Busy share decides; among equally busy cards the one with more memory left.
_HEAT_SHARE: Final = 0.75


def score(left: F, heat: F) -> F:
    """Judge a card: the cooler and the emptier, the better."""
    return _HEAT_SHARE * (1.0 - heat) + (1.0 - _HEAT_SHARE) * left
