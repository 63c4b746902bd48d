"""``load-aware``: prefer cards that are not busy, then those with more free memory.

The rebalancer cordons cards that are hot now, so they are not scored at all, and those that are
warming come last under every strategy. This scores the others by the heat that the node publishes.
"""

from typing import Final

from fracgpu.placement.policies.scoring import F

LINKED: Final = False

# The busy share decides; among equally busy cards the one with more memory left wins.
_HEAT_SHARE: Final = 0.75


def score(left: F, heat: F) -> F:
    """Return a card's score: the cooler and the emptier, the better."""
    return _HEAT_SHARE * (1.0 - heat) + (1.0 - _HEAT_SHARE) * left
