"""The result of placing a pod on a node: its cards, or card by card why none fits."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fracgpu.cards.card import CardUuid
from fracgpu.placement.fit import FitReason
from fracgpu.state.allocation import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The pod fits on the node: the cards it gets, and how much of each.

    Attributes:
        score: how good the placement is by the strategy, 0.0 (worst) to 1.0 (best).
        avoided: it takes a card that is taken only where no other fits; any placement without one
            is better, whatever its score.
    """

    node: str
    assignment: Assignment
    score: float
    avoided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlacement:
    """The pod does not fit: the reason of each unfit card, or one for the node as a whole.

    Attributes:
        node_reason: set if single cards do not explain it, such as when too few cards fit.
        cards: how many cards the node has.
    """

    node: str
    node_reason: FitReason | None = None
    refusals: Mapping[CardUuid, FitReason]
    cards: int = 0

    @property
    def text(self) -> str:
        """Return a message such as ``3 of 4 cards: too little free memory; 1 of 4: unhealthy``."""
        total = max(self.cards, len(self.refusals))
        return refusal_text(self.node_reason, Counter(self.refusals.values()), total=total)


def refusal_text(
    node_reason: FitReason | None, counted: Mapping[FitReason, int], *, total: int
) -> str:
    """Return why a node does not fit: each reason with its number of cards out of *total*."""
    of_cards = "; ".join(
        f"{count} of {total}{'' if position else ' cards'}: {reason.value}"
        for position, (reason, count) in enumerate(
            sorted(counted.items(), key=lambda item: (-item[1], item[0].value))
        )
    )
    if node_reason is None:
        return of_cards
    return f"{node_reason.value} ({of_cards})" if of_cards else node_reason.value
