"""Whether a node with cards of one class could hold a request, decided with integers alone.

A cluster may have hundreds of card classes and a pod more than a hundred containers, and every
admission may check every class. So the request is reduced once to a few integers, with which most
classes are decided in constant time. Why a request does not fit is explained once, by
:mod:`fracgpu.request.grant`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import lcm

from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.request.need import PodRequest
from fracgpu.units import Mib


class Fitting:
    """One request, prepared for comparison with card classes.

    Shares are exact fractions; they are kept as numerator and denominator, because a
    :class:`~fractions.Fraction` per container and class is too slow. A container with *n/d* of each
    of *cards* cards gets ``ceil(n * size_mib / d)`` MiB on each in a class of *size_mib*.

    Args:
        request: a request with at least one slice.
        among: the classes whose cards may be given to containers that ask for MiB.
    """

    def __init__(self, request: PodRequest, among: Sequence[CardClass]) -> None:
        self._among = among
        # Containers with a share: kind, numerator, denominator, number of cards.
        self._shares: list[tuple[ContainerKind, int, int, int]] = []
        # Containers whose limits already state gpu-mem: numerator, denominator, cards and the total
        # MiB stated. For a container that asks for MiB: MiB, 0, cards and the total.
        self._with_limit: list[tuple[int, int, int, int]] = []
        # App containers run all at once, so their sum is the peak and needs no fold by kind.
        self._all_at_once = True
        self._mib_fits = self._slots_agree = True
        self._most_cards = self._all_cards = 0
        # The peak of all shares, in cards of one class, is exactly _exact / _scale: 3/2 for 1/2 on
        # each of 3 cards. The scale is the least common denominator, so that no fraction is needed.
        self._scale = 1
        for part in request.slices:
            cards, share = part.cards, part.share
            if share is not None:
                numerator, denominator = share.numerator, share.denominator
                self._shares.append((part.kind, numerator, denominator, cards))
                self._all_at_once = self._all_at_once and part.kind is ContainerKind.APP
                self._most_cards = max(self._most_cards, cards)
                self._all_cards += cards
                self._scale = lcm(self._scale, denominator)
            else:
                numerator, denominator = part.mib or 0, 0
                if part.mib is not None and cards > self.cards_of(part.mib):
                    self._mib_fits = False
            if part.limit_mib is not None:
                self._with_limit.append((numerator, denominator, cards, part.limit_mib))
            if part.limit_slots is not None and part.limit_slots != cards:
                self._slots_agree = False
        self._exact = pod_resource_sum(
            [
                (kind, numerator * (self._scale // denominator) * cards)
                for kind, numerator, denominator, cards in self._shares
            ]
        )

    def cards_of(self, mib: Mib) -> int:
        """Return the largest number of cards in one node that have *mib* or more shareable."""
        sizes_mib, as_large = self._by_size
        at = bisect_left(sizes_mib, mib)
        return as_large[at] if at < len(as_large) else 0

    @cached_property
    def _by_size(self) -> tuple[list[Mib], list[int]]:
        """Sizes in MiB, ascending, and how many cards of one node have at least each size."""
        largest_first = sorted(self._among, key=lambda card_class: -card_class.capacity_mib)
        as_large = list(
            accumulate((card_class.as_large_per_node for card_class in largest_first), max)
        )
        return [card_class.capacity_mib for card_class in reversed(largest_first)], as_large[::-1]

    def holds(self, card_class: CardClass) -> bool:
        """Report whether an empty node with cards of this class could hold the whole pod."""
        most, size_mib = card_class.most_per_node, card_class.capacity_mib
        if not self._mib_fits or self._most_cards > most or self._exact > most * self._scale:
            return False
        # Rounding up adds less than 1 MiB on each card: if the pod still fits with 1 MiB more on
        # each, which is nearly always so, the exact sum below is not needed.
        if self._exact * size_mib <= (most * size_mib - self._all_cards) * self._scale:
            return True
        if self._all_at_once:
            peak_mib = sum(
                [
                    -(-numerator * size_mib // denominator) * cards
                    for _, numerator, denominator, cards in self._shares
                ]
            )
        else:
            peak_mib = pod_resource_sum(
                [
                    (kind, -(-numerator * size_mib // denominator) * cards)
                    for kind, numerator, denominator, cards in self._shares
                ]
            )
        return peak_mib <= most * size_mib

    def agrees(self, card_class: CardClass) -> bool:
        """Report whether limits that the pod already has match what this class would give it."""
        size_mib = card_class.capacity_mib
        if not self._with_limit:
            return self._slots_agree  # nearly every pod
        return self._slots_agree and all(
            (-(-numerator * size_mib // denominator) if denominator else numerator) * cards == mib
            for numerator, denominator, cards, mib in self._with_limit
        )
