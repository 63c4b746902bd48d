"""The interface of a placement policy that judges one card at a time.

A policy says how good a card will be once a container is on it, from 0.0 (worst) to 1.0 (best).
That one figure chooses the card on a node, and its mean over the chosen cards chooses the node. It
is written once and serves single cards and whole columns of them alike.
"""

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", float, NDArray[np.float64])


class Scoring(Protocol):
    """What a policy module has to offer."""

    @property
    def LINKED(self) -> bool:  # noqa: N802 - a module's constant
        """Whether a container on several cards gets neighbours, not each next best card."""

    def score(self, left: F, heat: F) -> F:
        """Judge a card.

        Args:
            left: what would be left of its shareable memory, 0..1 of its capacity.
            heat: how busy it was lately, 0..1; 1 where nobody says.
        """
        ...
