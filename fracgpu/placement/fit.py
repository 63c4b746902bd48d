"""Whether a container fits on a card: the one rule, asked of arrays of cards.

Filter, bind, preemption, ``fracgpu explain``, the rebalancer's plan and replays all ask
`unfit_reasons`, so a rule that is added to `RULES` holds in all of them. A question about one node
is one about a matrix of one row; see `cards_of`. Which cards are taken of those that fit is said by
`fracgpu.placement.placement`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import FULL_CORES, Card, Health
from fracgpu.cards.card_class import DEFAULT_VENDOR, Vendor, model_allowed, vendor_of
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import Mib

Codes = NDArray[np.int8]
"""Reasons as numbers: `FitReason.code`, or one of the following."""
Flags = NDArray[np.bool_]
IntArray = NDArray[np.int64]

USABLE: Final = 0
"""The state of a card that takes slices; and of a card on which a container fits."""
SHARES: Final = 0
"""The state of a node that shares its cards."""
ABSENT: Final = -1
"""A cell of a row without a card there."""
UNKNOWN: Final = -1
"""The state of a node that has not been reported."""


class Obstacle(Enum):
    """Why a node does not fit, in few words and few kinds; the nearest to fitting comes first.

    An event of kube-scheduler counts equal reasons of nodes and has 1,024 bytes for all of them;
    ``fracgpu explain`` gives the reason of each card.
    """

    LIMITS = "limits too large together"
    MEMORY = "too little free memory"
    COMPUTE = "too little free compute or no free slot"
    TOGETHER = "too few cards that fit together"
    OTHER_CARDS = "wrong card model or size"
    OUT_OF_SERVICE = "unhealthy or cordoned"
    OTHER_WIRING = "node with the other wiring"
    NO_CARDS = "no shared cards known"


class FitReason(Enum):
    """Why a card, or a node as a whole, does not fit; the value is for people.

    Attributes:
        obstacle: its kind.
        resolvable: it may go away if pods leave the node, as kube-scheduler calls it.
        code: stands for it in arrays; 1 or more.
    """

    _value_: str
    obstacle: Obstacle
    resolvable: bool
    code: int

    NOT_SHARED = "the node does not share its cards", Obstacle.NO_CARDS
    NO_INVENTORY = "the node has not reported its cards", Obstacle.NO_CARDS
    UNSCHEDULABLE = (
        "the node is cordoned, not ready, or kubelet does not know its node agent",
        Obstacle.OUT_OF_SERVICE,
    )
    UNREADABLE = "the annotations that describe its cards cannot be read", Obstacle.NO_CARDS
    TOO_FEW_CARDS = "too few cards", Obstacle.TOGETHER
    UNHEALTHY = "unhealthy", Obstacle.OUT_OF_SERVICE
    CORDONED = "cordoned by the rebalancer", Obstacle.OUT_OF_SERVICE
    OTHER_WIRING = "of a node with the other wiring", Obstacle.OTHER_WIRING
    WRONG_VENDOR = "of another vendor", Obstacle.OTHER_CARDS
    WRONG_MODEL = "not a requested model", Obstacle.OTHER_CARDS
    WRONG_CLASS = "not the card size that the share was granted for", Obstacle.OTHER_CARDS
    TOO_LITTLE_FREE = "too little free memory", Obstacle.MEMORY, True
    LIMITS_TOO_LARGE = "the limits of its pods would be too large together", Obstacle.LIMITS, True
    TOO_FEW_CORES = "too little free compute", Obstacle.COMPUTE, True
    NO_FREE_SLOT = "all its slots are taken", Obstacle.COMPUTE, True
    CONTAINERS_CLASH = "its containers do not fit side by side", Obstacle.TOGETHER, True
    TOO_MANY_TRIES = "too many combinations to try", Obstacle.TOGETHER, True

    def __new__(cls, text: str, obstacle: Obstacle, resolvable: bool = False) -> "FitReason":  # noqa: FBT001, FBT002 - written as a row of a table
        reason = object.__new__(cls)
        reason._value_ = text
        reason.obstacle, reason.resolvable = obstacle, resolvable
        reason.code = len(cls.__members__) + 1
        return reason


REASONS: Final[tuple[FitReason | None, ...]] = (None, *FitReason)
"""The reason of each code from 0 on."""

_LARGE: Final = 2**61  # more MiB than any cards have together, within 64 bits
_OBSTACLES: Final = tuple(Obstacle)
_FARTHEST: Final = len(_OBSTACLES) - 1  # no cards, as of what has no reason
# [code] of the reason; the last is that of ABSENT and UNKNOWN.
_NEARNESS: Final = np.array(
    [_FARTHEST, *(_OBSTACLES.index(reason.obstacle) for reason in FitReason), _FARTHEST], np.int8
)
_RESOLVABLE: Final = np.array([False, *(reason.resolvable for reason in FitReason), False])


class Cards(NamedTuple):
    """Cards as arrays of one shape: [row, card] of nodes, or what one card could become.

    Attributes:
        state: USABLE, ABSENT, or the code of why the card takes no slices whoever asks.
        avoided: the card is taken only where no other fits.
        by_claims: kube-scheduler allocates the card, to claims.
        heat: how busy it was lately, 0..1; 1 if unknown.
        free_mib: negative if the capacity shrank below what pods hold.
        limits_mib: what the limits of its containers may add up to; 0 where nobody may be given
            more than is guaranteed.
        free_limit_mib: how much more they may add up to; of a card without, guarantees and the
            limits that still stand from before.
        free_cores: per cent of the card's compute.
        free_slots: how many more containers may share the card.
        pods: how many pods hold something of it.
        model: index into *models*.
        models: the names of card models.
    """

    state: Codes
    avoided: Flags
    by_claims: Flags
    heat: NDArray[np.float64]
    free_mib: IntArray
    capacity_mib: IntArray
    limits_mib: IntArray
    free_limit_mib: IntArray
    free_cores: IntArray
    free_slots: IntArray
    pods: IntArray
    model: IntArray
    models: tuple[str, ...]

    def at(self, those: IntArray | Flags | tuple[IntArray, IntArray] | int) -> "Cards":
        """Return the cards of some rows, or those in some cells."""
        *arrays, models = self
        return Cards._make([*(array[those] for array in arrays), models])

    def less(
        self,
        mib: IntArray | int,
        cores: IntArray | int,
        slots: IntArray | int,
        limit_mib: IntArray | int,
    ) -> "Cards":
        """Return the cards with more taken of each; less, where an amount is negative."""
        return self._replace(
            free_mib=self.free_mib - mib,
            free_limit_mib=self.free_limit_mib - limit_mib,
            free_cores=self.free_cores - cores,
            free_slots=self.free_slots - slots,
        )

    def without(self, leaving: Sequence[Sequence[CardAllocation]]) -> "Cards":
        """Return cards in a line as if pods that hold this had left each of them."""
        amounts = [
            (one.mib, one.cores, one.slots, one.limit_mib) for pods in leaving for one in pods
        ]
        sums = np.array([(0, 0, 0, 0), *amounts], np.int64).cumsum(0)
        counts = np.array([len(pods) for pods in leaving], np.int64)
        ends = counts.cumsum()
        return self.less(*(sums[ends - counts] - sums[ends]).T)._replace(pods=self.pods - counts)

    def emptied(self) -> "Cards":
        """Return the cards as if nothing held them; a slot is free on each."""
        return self._replace(
            free_mib=self.capacity_mib,
            free_limit_mib=np.where(self.limits_mib, self.limits_mib, self.capacity_mib),
            free_cores=np.full_like(self.free_cores, FULL_CORES),
            free_slots=np.maximum(self.free_slots, 1),
            pods=np.zeros_like(self.pods),
        )


class CardRequest(NamedTuple):
    """What is asked of one card; each amount is a number, or an array with one for each card.

    Attributes:
        limit_mib: how much may be used of a card with limits; never less than *mib*.
        limit_share: the same as a share of the card; None for no more than *mib*.
        share: if set, only cards of which that share is exactly *mib* will do.
    """

    mib: int | IntArray
    cores: int | IntArray = 0
    slots: int | IntArray = 1
    limit_mib: int | IntArray = 0
    limit_share: Fraction | None = None
    share: Fraction | None = None

    @classmethod
    def of(cls, container: ContainerNeed) -> "CardRequest":
        """Return what a container asks of each of its cards."""
        return cls(
            container.mib,
            container.cores,
            1,
            container.limit_mib or 0,
            container.limit_share,
            container.share,
        )

    @classmethod
    def of_all(cls, allocation: CardAllocation) -> "CardRequest":
        """Return what all containers of a pod ask of a card together."""
        return cls(allocation.mib, allocation.cores, allocation.slots, allocation.limit_mib)

    def limits_on(self, cards: Cards | Card) -> IntArray:
        """Return how much may be used of each card; of one without limits what is guaranteed."""
        limit_mib, share = self.limit_mib, self.limit_share
        if share is not None:
            limit_mib = -(-share.numerator * cards.capacity_mib // share.denominator)
        found: IntArray = np.maximum((cards.limits_mib != 0) * limit_mib, self.mib)
        return found


def keep_limit(limits_mib: IntArray, *, borrows: bool) -> Flags | bool:
    """Return the cards on which a pod keeps what it may use: all, unless it *borrows*."""
    return limits_mib > 0 if borrows else True


_Refused = Flags | bool


class Rule(NamedTuple):
    """A reason for which a card does not fit, and the cards that it refuses.

    Attributes:
        of_pod: the request of the card plays no part, so that no change of it helps.
    """

    reason: FitReason
    refuses: Callable[[Cards, PodNeed, CardRequest], _Refused]
    of_pod: bool = False


def _other_wiring(cards: Cards, need: PodNeed, _: CardRequest) -> _Refused:
    refused: Flags = cards.by_claims != need.by_claim
    return refused if refused.any() else False


def _wrong_vendor(cards: Cards, need: PodNeed, _: CardRequest) -> _Refused:
    others = _of_other_vendors(cards.models, need.vendor or DEFAULT_VENDOR)
    if others is None:
        return False  # nearly every cluster
    refused: Flags = others[cards.model]
    return refused


@lru_cache(maxsize=64)
def _of_other_vendors(models: tuple[str, ...], vendor: Vendor) -> Flags | None:
    """Return which of *models* are not of *vendor*; None if all are."""
    others = np.array([vendor_of(model) is not vendor for model in models], np.bool_)
    return others if others.any() else None


def _wrong_model(cards: Cards, need: PodNeed, _: CardRequest) -> _Refused:
    if not need.models or not cards.models:
        return False
    allowed = [model_allowed(model, globs=need.models) for model in cards.models]
    refused: Flags = ~np.array(allowed, np.bool_)[cards.model]
    return refused


def _wrong_class(cards: Cards, _: PodNeed, asked: CardRequest) -> _Refused:
    """Return the cards of which the share, rounded up, is not the MiB that were granted."""
    if asked.share is None:
        return False
    parts, of = asked.share.numerator, asked.share.denominator
    most = int(asked.mib) * of // parts
    least = (int(asked.mib) - 1) * of // parts
    return (cards.capacity_mib > min(most, _LARGE)) | (cards.capacity_mib <= min(least, _LARGE))


def _too_little_free(cards: Cards, _: PodNeed, asked: CardRequest) -> _Refused:
    return cards.free_mib < asked.mib


def _limits_too_large(cards: Cards, _: PodNeed, asked: CardRequest) -> _Refused:
    return cards.free_limit_mib < asked.limits_on(cards)


def _too_few_cores(cards: Cards, _: PodNeed, asked: CardRequest) -> _Refused:
    # Less than nothing is free where a card holds more than it has: no pod fits, with cores or not.
    return cards.free_cores < asked.cores


def _no_free_slot(cards: Cards, _: PodNeed, asked: CardRequest) -> _Refused:
    return cards.free_slots < asked.slots


RULES: Final = (
    Rule(FitReason.OTHER_WIRING, _other_wiring, of_pod=True),
    Rule(FitReason.WRONG_VENDOR, _wrong_vendor, of_pod=True),
    Rule(FitReason.WRONG_MODEL, _wrong_model, of_pod=True),
    Rule(FitReason.WRONG_CLASS, _wrong_class),
    Rule(FitReason.TOO_LITTLE_FREE, _too_little_free),
    Rule(FitReason.LIMITS_TOO_LARGE, _limits_too_large),
    Rule(FitReason.TOO_FEW_CORES, _too_few_cores),
    Rule(FitReason.NO_FREE_SLOT, _no_free_slot),
)
"""What is asked of a usable card; of several reasons the first counts."""

_NOTHING: Final = CardRequest(0, 0, 0)


def unfit_reasons(cards: Cards, need: PodNeed, asked: CardRequest | None) -> Codes:
    """Return for each card why what is asked does not fit on it; USABLE where it does.

    Args:
        cards: the cards.
        need: the pod's.
        asked: of each card; None to know which cards the pod may have at all.
    """
    found = cards.state.copy("K")
    fits = cards.state == USABLE
    for rule in RULES:
        if asked is None and not rule.of_pod:
            continue
        refused = rule.refuses(cards, need, asked or _NOTHING)
        if refused is not False:
            refused &= fits
            found += refused * np.int8(rule.reason.code)
            fits ^= refused
    return found


def suits(cards: Cards, need: PodNeed, asked: CardRequest) -> Flags:
    """Return which cards would do if nothing held them."""
    found: Flags = unfit_reasons(cards.emptied(), need, asked) == USABLE
    return found


def least_borrow(cards: Cards, need: PodNeed) -> Mapping[str, Mib]:
    """Return how much more than it is guaranteed each container may use wherever it may at all.

    On the cards that would do if nothing held or closed them; nothing where none can be limited.

    Args:
        cards: [row, card] those of nodes, of each of which all can be limited or none.
        need: the pod's.
    """
    state = np.where(cards.state == ABSENT, ABSENT, USABLE).astype(np.int8)
    emptied = cards.emptied()._replace(state=state)
    rows, limits = np.ones(len(state), np.bool_), []
    for container in need.containers:
        asked = CardRequest.of(container)
        lends = (unfit_reasons(emptied, need, asked) == USABLE) & (cards.limits_mib > 0)
        rows &= lends.sum(1) >= container.cards
        limits.append(np.where(lends, asked.limits_on(cards), _LARGE))
    least = [int(each[rows].min(initial=_LARGE)) for each in limits] if rows.any() else []
    return {
        container.name: Mib(limit_mib - container.mib)
        for container, limit_mib in zip(need.containers, least, strict=False)
        if limit_mib > container.mib
    }


def cards_of(infos: Collection[CardInfo], models: dict[str, int] | None = None) -> Cards:
    """Return cards of one node as a matrix of one row.

    Args:
        infos: the cards, in the order of the columns.
        models: the number of each model; new ones are added.
    """
    numbers = {} if models is None else models
    amounts = [
        (
            info.free_mib,
            info.card.capacity_mib,
            info.card.limits_mib,
            info.free_limit_mib,
            FULL_CORES - info.held_cores,
            info.free_slots,
            len(info.pods),
            numbers.setdefault(info.card.model, len(numbers)),
        )
        for info in infos
    ]
    state, avoided = [_card_state(info) for info in infos], [info.avoided for info in infos]
    return Cards._make(
        [
            np.array([state], np.int8),
            np.array([avoided], np.bool_),
            np.array([[info.by_claims for info in infos]], np.bool_),
            np.array([[info.heat for info in infos]], np.float64),
            *np.array(amounts, np.int64).reshape(1, -1, 8).transpose(2, 0, 1),
            tuple(numbers),
        ]
    )


def _card_state(info: CardInfo) -> int:
    if info.card.health is not Health.HEALTHY:
        return FitReason.UNHEALTHY.code
    return FitReason.CORDONED.code if info.cordoned or info.kept_for else USABLE


def node_reason(node_info: NodeInfo) -> FitReason | None:
    """Return why a node takes no slices whoever asks; None if it does."""
    node = node_info.node
    if not node.shared:
        return FitReason.NOT_SHARED
    if not node.schedulable:
        return FitReason.UNSCHEDULABLE
    if node.problem:
        return FitReason.UNREADABLE
    return None if node_info.cards else FitReason.NO_INVENTORY


def obstacle(reasons: Iterable[FitReason | None]) -> Obstacle:
    """Return the obstacle nearest to fitting among all reasons of a node and its cards."""
    met = {reason.obstacle for reason in reasons if reason is not None}
    return next((kind for kind in Obstacle if kind in met), Obstacle.NO_CARDS)


class Refusals(NamedTuple):
    """Why nodes do not fit.

    Attributes:
        obstacles: [row] the one nearest to fitting, by its position in `Obstacle`.
        resolvable: [row] whether it may fit once pods have left the node, or once it is reported.
    """

    obstacles: Codes
    resolvable: Flags

    @classmethod
    def of(cls, node_reasons: Codes, reasons: Codes) -> "Refusals":
        """Return it by the codes of the nodes' own reasons and, [row, card], of their cards'.

        The first are 0 where the cards say it all, and UNKNOWN where a node has not been reported.
        """
        unknown = node_reasons == UNKNOWN
        return cls(
            np.minimum(_NEARNESS[node_reasons], _NEARNESS[reasons].min(1)),
            unknown | _RESOLVABLE[node_reasons] | _RESOLVABLE[reasons].any(1),
        )


def refusal(counted: Mapping[Obstacle, int]) -> str:
    """Return why none of the counted nodes fits, the commonest obstacle first.

    kube-scheduler puts the number of nodes before the text, so it begins as its own reasons do.
    """
    ranked = sorted(counted.items(), key=lambda item: (-item[1], _OBSTACLES.index(item[0])))
    summary = ", ".join(f"{count} {kind.value}" for kind, count in ranked)
    return f"node(s) without a fitting card ({summary}; fracgpu explain says more)"
