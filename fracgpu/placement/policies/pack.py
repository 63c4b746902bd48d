"""``pack``: the fullest card that still fits, so that other cards stay whole."""

from typing import Final

from fracgpu.placement.policies.scoring import F

LINKED: Final = False


def score(left: F, heat: F) -> F:  # noqa: ARG001 - the interface
    """Return a card's score: the less is left, the better."""
    return 1.0 - left
