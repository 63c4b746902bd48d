"""What placing a pod on a node comes to: its cards, or card by card why there are none."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Assignment


class FitReason(Enum):
    """Why a card, or a node as a whole, will not do."""

    NOT_SHARED = "the node does not share its cards"
    NO_INVENTORY = "the node has not reported its cards"
    UNSCHEDULABLE = "the node is cordoned"
    UNREADABLE = "what its annotations say of its cards cannot be read"
    TOO_FEW_CARDS = "too few cards"
    UNHEALTHY = "unhealthy"
    CORDONED = "set aside by the rebalancer"
    WRONG_MODEL = "another model than asked for"
    WRONG_CLASS = "another size than the share was granted for"
    TOO_LITTLE_FREE = "too little free memory"
    TOO_FEW_CORES = "too little free compute"
    NO_FREE_SLOT = "all its slots are taken"
    CONTAINERS_CLASH = "its containers do not fit side by side"
    TOO_MANY_TRIES = "too many combinations to try"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The answer yes: these cards, this much.

    Attributes:
        score: how good, 0.0 (worst) to 1.0 (best) by the strategy asked for.
    """

    node: str
    assignment: Assignment
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlacement:
    """The answer no: the reason of each card that will not do, or one for the node as a whole.

    Attributes:
        whole: set where no card by itself is to blame, such as when too few are left.
        cards: how many cards the node has.
    """

    node: str
    whole: FitReason | None = None
    refusals: Mapping[CardUuid, FitReason]
    cards: int = 0

    @property
    def text(self) -> str:
        """Say it in plain words: ``3 of 4 cards: too little free memory; 1 of 4: unhealthy``."""
        total = max(self.cards, len(self.refusals))
        return refusal_text(self.whole, Counter(self.refusals.values()), total=total)


def refusal_text(whole: FitReason | None, counted: Mapping[FitReason, int], *, total: int) -> str:
    """Say why a node refused: each reason with the number of cards, of *total*, that give it."""
    of_cards = "; ".join(
        f"{count} of {total}{'' if place else ' cards'}: {reason.value}"
        for place, (reason, count) in enumerate(
            sorted(counted.items(), key=lambda it: (-it[1], it[0].value))
        )
    )
    if whole is None:
        return of_cards
    return f"{whole.value} ({of_cards})" if of_cards else whole.value
