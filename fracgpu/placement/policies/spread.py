"""``spread``: the emptiest card, so that neighbours disturb each other least."""

from typing import Final

from fracgpu.placement.policies.scoring import F

LINKED: Final = False


def score(left: F, heat: F) -> F:  # noqa: ARG001 - the interface
    """Return a card's score: the more is left, the better."""
    return 1.0 * left
