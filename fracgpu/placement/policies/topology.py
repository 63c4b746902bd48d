"""``topology``: the least loaded card first, then its fastest-linked neighbours.

For pods whose cards exchange data. Distances come from the node's inventory (NVLink is nearest,
then PCIe, then another socket). How near the chosen cards are counts as much as their load.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fracgpu.cards.card import Card, CardUuid
from fracgpu.placement.policies.scoring import F

LINKED: Final = True

# Farther than any link that an inventory reports.
_UNKNOWN: Final = 1_000


def score(left: F, heat: F) -> F:  # noqa: ARG001 - the interface
    """Return a card's own score: the more is left, the better."""
    return 1.0 * left


def neighbours(ranked: Sequence[Card], count: int) -> tuple[Card, ...]:
    """Return *count* cards: the first of *ranked*, then repeatedly the one nearest to those taken.

    Ties go to the better ranked card.
    """
    taken = [ranked[0]]
    rest = list(ranked[1:])
    while len(taken) < count:
        nearest = min(rest, key=lambda card: sum(distance(card, other) for other in taken))
        rest.remove(nearest)
        taken.append(nearest)
    return tuple(taken)


def closeness(cards: Sequence[Card]) -> float:
    """Return how near cards are to each other: 1.0 at distance 0 or for one card, towards 0."""
    pairs = [distance(card, other) for at, card in enumerate(cards) for other in cards[at + 1 :]]
    return 1.0 / (1.0 + sum(pairs) / len(pairs)) if pairs else 1.0


def distance(card: Card, other: Card) -> int:
    """Return the distance that either card's inventory reports, or one beyond any if unknown."""
    links: Mapping[CardUuid, int] = card.links
    found = links.get(other.uuid)
    if found is None:
        found = other.links.get(card.uuid)
    return _UNKNOWN if found is None else found
