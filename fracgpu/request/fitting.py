"""Whether a class of cards could hold a request, told for a few integers a class.

A fleet may have hundreds of classes and a pod more than a hundred containers, and every admission
asks of each class; what is wrong is worded once, by :mod:`fracgpu.request.grant`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import lcm

from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.request.need import PodRequest
from fracgpu.units import Mib


class Fitting:
    """One request, held against classes.

    Args:
        request: it is not empty.
        among: the classes whose cards may be given to containers that ask for MiB.
    """

    def __init__(self, request: PodRequest, among: Sequence[CardClass]) -> None:
        self._shares = [
            (it.kind, it.share.numerator, it.share.denominator, it.cards)
            for it in request.slices
            if it.share is not None
        ]
        self._all_at_once = all(kind is ContainerKind.APP for kind, *_ in self._shares)
        self._most_cards = max((cards for *_, cards in self._shares), default=0)
        self._all_cards = sum(cards for *_, cards in self._shares)
        self._scale = lcm(*(d for _, _, d, _ in self._shares))
        self._exact = pod_resource_sum(
            [(kind, n * (self._scale // d) * cards) for kind, n, d, cards in self._shares]
        )
        largest_first = sorted(among, key=lambda it: -it.capacity_mib)
        self._sizes_mib = [it.capacity_mib for it in reversed(largest_first)]
        # How many cards of one node are at least so large, from the smallest size on.
        self._as_large = list(accumulate((it.as_large_per_node for it in largest_first), max))[::-1]
        self._mib_fits = all(
            it.share is not None or it.mib is None or it.cards <= self.cards_of(it.mib)
            for it in request.slices
        )
        # Numerator, denominator, cards and the MiB that the limits say.
        self._stated = [
            (it.share.numerator, it.share.denominator, it.cards, it.stated_mib)
            if it.share is not None
            else (it.mib or 0, 0, it.cards, it.stated_mib)
            for it in request.slices
            if it.stated_mib is not None
        ]
        self._slots_agree = all(it.stated_slots in (None, it.cards) for it in request.slices)

    def cards_of(self, mib: Mib) -> int:
        """Give the largest number of cards in one node that share so many MiB or more."""
        at = bisect_left(self._sizes_mib, mib)
        return self._as_large[at] if at < len(self._as_large) else 0

    def holds(self, card_class: CardClass) -> bool:
        """Tell whether a node of such cards, were it empty, could hold the whole pod."""
        most, size_mib = card_class.most_per_node, card_class.capacity_mib
        if not self._mib_fits or self._most_cards > most or self._exact > most * self._scale:
            return False
        # Rounding up adds less than one MiB on each card, which nearly always leaves room.
        if self._exact * size_mib <= (most * size_mib - self._all_cards) * self._scale:
            return True
        if self._all_at_once:
            peak_mib = sum([-(-n * size_mib // d) * cards for _, n, d, cards in self._shares])
        else:
            peak_mib = pod_resource_sum(
                [(kind, -(-n * size_mib // d) * cards) for kind, n, d, cards in self._shares]
            )
        return peak_mib <= most * size_mib

    def agrees(self, card_class: CardClass) -> bool:
        """Tell whether the limits that are there already say what this class makes of the rest."""
        size_mib = card_class.capacity_mib
        return self._slots_agree and all(
            (-(-n * size_mib // d) if d else n) * cards == mib for n, d, cards, mib in self._stated
        )
