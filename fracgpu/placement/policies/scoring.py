"""The interface of a placement policy that scores one card at a time.

A policy scores a card as it will be once a container is on it, from 0.0 (worst) to 1.0 (best). The
score chooses the card on a node, and its mean over the chosen cards chooses the node. One function
serves single cards (floats) and arrays of cards alike, so both give the same score to the bit.
"""

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", float, NDArray[np.float64])


class Scoring(Protocol):
    """What a policy module has to define."""

    @property
    def LINKED(self) -> bool:  # noqa: N802 - a module's constant
        """Whether a container on several cards gets neighbours, not the best single cards."""

    def score(self, left: F, heat: F) -> F:
        """Return the score of a card, or of each card of an array.

        Args:
            left: what would be left of its shareable memory, as a share of its capacity, 0..1.
            heat: how busy it was lately, 0..1; 1 if unknown.
        """
        ...
