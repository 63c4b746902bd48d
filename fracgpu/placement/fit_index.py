"""Whether and how well a need fits on every node, in a few array operations.

Most pods have one container: whether it fits is computed for all nodes at once. Pods with several
containers, or with several cards that must be neighbours, are searched node by node, but only on
nodes where each container fits by itself. Results are kept and updated only for nodes that changed:
prioritize after filter, or the next pod with the same need, costs nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import ABSENT, SHARES, UNKNOWN, USABLE, IntArray, NodeMatrix
from fracgpu.placement.outcome import FitReason, NoPlacement, Placement
from fracgpu.placement.placement import SCORING, allocation_on_one_card, is_linked, place
from fracgpu.placement.policies.scoring import Scoring
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.units import Mib, share_of

FITS: Final = 0

# A verdict packs the answer for one node into one int64. All verdicts are then one array, computed
# without a Python object for each node, and equal answers are equal numbers, each decoded once.
# 0 is FITS; else, from the lowest bit:
#   bits 0-3    the reason of the node as a whole: an index into _WHOLE, 0 for none
#   bits 4-10   how many cards the node has
#   bits 11-59  for each of the seven reasons of _OF_CARDS, in order, seven bits: how many cards
#               have it
# 60 bits keep the number positive; seven bits count up to 127 cards.
#
# Indexes 0 to 4 and 8 of _WHOLE are the node states of `node_matrix`, so that a node's state is its
# verdict until its cards are looked at.
_WHOLE: Final = (
    None,
    FitReason.NOT_SHARED,
    FitReason.UNSCHEDULABLE,
    FitReason.NO_INVENTORY,
    None,  # UNKNOWN: the node has not been reported
    FitReason.TOO_FEW_CARDS,
    FitReason.CONTAINERS_CLASH,
    FitReason.TOO_MANY_TRIES,
    FitReason.UNREADABLE,
)
_OF_CARDS: Final = (
    FitReason.UNHEALTHY,
    FitReason.CORDONED,
    FitReason.WRONG_MODEL,
    FitReason.WRONG_CLASS,
    FitReason.TOO_LITTLE_FREE,
    FitReason.TOO_FEW_CORES,
    FitReason.NO_FREE_SLOT,
)
# A card's reason is 1 plus its index into _OF_CARDS, 0 for none; 1 and 2 are the card states
# UNHEALTHY and CORDONED of `node_matrix`.
_WRONG_MODEL, _WRONG_CLASS, _TOO_LITTLE_FREE, _TOO_FEW_CORES, _NO_FREE_SLOT = 3, 4, 5, 6, 7
_WHOLE_BITS: Final = 4
_COUNT_BITS: Final = 7
_COUNT_MASK: Final = 2**_COUNT_BITS - 1
_TOO_FEW_CARDS: Final = _WHOLE.index(FitReason.TOO_FEW_CARDS)

# Reasons that may go away if pods leave the node: what kube-scheduler calls resolvable.
RESOLVABLE: Final = frozenset(
    {
        FitReason.TOO_LITTLE_FREE,
        FitReason.TOO_FEW_CORES,
        FitReason.NO_FREE_SLOT,
        FitReason.CONTAINERS_CLASH,
        FitReason.TOO_MANY_TRIES,
    }
)
# Results of needs that were asked for least recently are dropped: beyond 17 MB, at 17 bytes a row,
# but not below as many needs as are common together.
_MAX_CELLS: Final = 1_000_000
_FEWEST_RESULTS, _MOST_RESULTS = 64, 256


class Obstacle(Enum):
    """Why a node does not fit, in few words and few kinds; the nearest to fitting comes first.

    An event of kube-scheduler counts equal reasons of nodes and has 1,024 bytes for all of them;
    ``fracgpu explain`` gives the reason of each card.
    """

    MEMORY = "too little free memory"
    COMPUTE = "too little free compute or no free slot"
    TOGETHER = "too few cards that fit together"
    OTHER_CARDS = "wrong card model or size"
    OUT_OF_SERVICE = "unhealthy or cordoned"
    NO_CARDS = "no shared cards known"


OBSTACLES: Final[Mapping[FitReason, Obstacle]] = {
    FitReason.TOO_LITTLE_FREE: Obstacle.MEMORY,
    FitReason.TOO_FEW_CORES: Obstacle.COMPUTE,
    FitReason.NO_FREE_SLOT: Obstacle.COMPUTE,
    FitReason.TOO_FEW_CARDS: Obstacle.TOGETHER,
    FitReason.CONTAINERS_CLASH: Obstacle.TOGETHER,
    FitReason.TOO_MANY_TRIES: Obstacle.TOGETHER,
    FitReason.WRONG_MODEL: Obstacle.OTHER_CARDS,
    FitReason.WRONG_CLASS: Obstacle.OTHER_CARDS,
    FitReason.UNHEALTHY: Obstacle.OUT_OF_SERVICE,
    FitReason.CORDONED: Obstacle.OUT_OF_SERVICE,
    FitReason.UNSCHEDULABLE: Obstacle.OUT_OF_SERVICE,
    FitReason.NOT_SHARED: Obstacle.NO_CARDS,
    FitReason.NO_INVENTORY: Obstacle.NO_CARDS,
    FitReason.UNREADABLE: Obstacle.NO_CARDS,
}
"""The kind of obstacle of every reason."""


class FitResult:
    """One need's verdict and score for every row of the node matrix.

    Attributes:
        verdict: [row] :data:`FITS`, or a packed reason; see :meth:`FitIndex.obstacle_of`.
        score: [row] the score of the placement, 0..1; 0 where the need does not fit.
        avoided: [row] the need fits only with a card that is taken where no other fits.
    """

    def __init__(self, need: PodNeed, strategy: Strategy) -> None:
        self._need = need
        self._strategy = strategy
        self._scoring: Scoring = SCORING[need.strategy or strategy]
        self._linked = is_linked(need, strategy=strategy)
        self._seen = -1
        self.verdict = np.zeros(0, np.int64)
        self.score = np.zeros(0, np.float64)
        self.avoided = np.zeros(0, np.bool_)

    def keep_up(self, matrix: NodeMatrix) -> None:
        """Compute again the rows that changed since the last call."""
        if self._seen == matrix.now:
            return
        missing = len(matrix.changed) - len(self.verdict)
        if missing:
            self.verdict = np.concatenate((self.verdict, np.zeros(missing, np.int64)))
            self.score = np.concatenate((self.score, np.zeros(missing)))
            self.avoided = np.concatenate((self.avoided, np.zeros(missing, np.bool_)))
        rows = matrix.changed_since(self._seen)
        self.avoided[rows] = False
        self.verdict[rows], self.score[rows] = self._evaluate(matrix, rows)
        self._seen = matrix.now

    def _evaluate(self, matrix: NodeMatrix, rows: IntArray) -> tuple[IntArray, NDArray[np.float64]]:
        node_state = matrix.node_state[rows].astype(np.int64)
        verdict = node_state.copy()
        score = np.zeros(len(rows))
        allowed = matrix.allowed(self._need.models)
        alone = len(self._need.containers) == 1
        here = np.flatnonzero(node_state == SHARES)
        for container in self._need.containers:
            reason = _card_reasons(matrix, rows[here], container, allowed)
            fitting = reason == USABLE
            enough = fitting.sum(1) >= container.cards
            if not enough.all():
                verdict[here[~enough]] = _unfit_verdicts(reason[~enough])
                here, fitting = here[enough], fitting[enough]
            if not len(here):
                break
            if alone and not (self._linked and container.cards > 1):
                left = matrix.free_mib[rows[here]] - container.mib
                score[here] = self._scores(matrix, rows[here], left, fitting, container)
                return verdict, score
        for at in here.tolist():
            answer = self._search(matrix, int(rows[at]))
            if isinstance(answer, Placement):
                verdict[at], score[at] = FITS, answer.score
                self.avoided[rows[at]] = answer.avoided
            else:
                verdict[at] = verdict_of(answer)
        return verdict, score

    def _scores(
        self,
        matrix: NodeMatrix,
        rows: IntArray,
        left_mib: IntArray,
        fitting: NDArray[np.bool_],
        container: ContainerNeed,
    ) -> NDArray[np.float64]:
        left = left_mib / np.maximum(matrix.capacity_mib[rows], 1)
        each = np.where(fitting, self._scoring.score(left, matrix.heat[rows]), -np.inf)
        avoided = fitting & matrix.avoided[rows]
        if avoided.any():
            return self._scores_avoiding(rows, each, avoided, cards=container.cards)
        if container.cards == 1:
            best: NDArray[np.float64] = np.clip(each.max(1), 0.0, 1.0)
            return best
        each = -np.sort(-each, axis=1)
        total = np.zeros(len(rows))
        for column in range(container.cards):  # in the order of `place`: the same float
            total += each[:, column]
        mean: NDArray[np.float64] = np.clip(total / container.cards, 0.0, 1.0)
        return mean

    def _scores_avoiding(
        self,
        rows: IntArray,
        each: NDArray[np.float64],
        avoided: NDArray[np.bool_],
        *,
        cards: int,
    ) -> NDArray[np.float64]:
        """Return the score of each row, its avoided cards last, and note which rows take some."""
        best = np.lexsort((-each, avoided, each == -np.inf), axis=1)[:, :cards]
        self.avoided[rows] = np.take_along_axis(avoided, best, axis=1).any(1)
        total = np.zeros(len(rows))
        for column in range(cards):  # in the order of `place`: the same float
            total += np.take_along_axis(each, best[:, column : column + 1], axis=1)[:, 0]
        mean: NDArray[np.float64] = np.clip(total / cards, 0.0, 1.0)
        return mean

    def _search(self, matrix: NodeMatrix, row: int) -> Placement | NoPlacement:
        node_info = matrix.infos[row]
        assert node_info is not None, "a row in state SHARES has a node"
        return place(node_info, self._need, strategy=self._strategy)


class FitIndex:
    """The fit results of the needs asked for most recently.

    Args:
        matrix: the cards.
    """

    def __init__(self, matrix: NodeMatrix) -> None:
        self.matrix = matrix
        self._results: OrderedDict[tuple[PodNeed, Strategy], FitResult] = OrderedDict()
        self._decoded: dict[int, tuple[Obstacle, bool]] = {}

    def evaluate(self, need: PodNeed, *, strategy: Strategy, now: datetime) -> FitResult:
        """Return the result of *need* for every node, as the ledger is now."""
        self.matrix.refresh(now=now)
        key = (need, strategy)
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = FitResult(need, strategy)
            while len(self._results) > self._most_results:
                self._results.popitem(last=False)
        else:
            self._results.move_to_end(key)
        result.keep_up(self.matrix)
        return result

    @property
    def _most_results(self) -> int:
        most = _MAX_CELLS // len(self.matrix.changed)
        return min(max(most, _FEWEST_RESULTS), _MOST_RESULTS)

    def obstacle_of(self, verdict: int) -> tuple[Obstacle, bool]:
        """Return the obstacle of a verdict that is not FITS, and whether preemption may help."""
        found = self._decoded.get(verdict)
        if found is None:
            if len(self._decoded) > 10 * _MOST_RESULTS:
                self._decoded.clear()
            found = self._decoded[verdict] = _decode(verdict)
        return found


def cards_for_whole_pod(matrix: NodeMatrix, need: PodNeed) -> NDArray[np.bool_]:
    """Return on which cards all containers of a pod fit side by side, [row, column].

    No card takes a pod with a container on several cards.
    """
    rows = np.arange(matrix.size)
    fits = np.repeat((matrix.node_state[rows] == SHARES)[:, np.newaxis], matrix.width, axis=1)
    if any(container.cards > 1 for container in need.containers) or not need.containers:
        return np.zeros_like(fits)
    allowed = matrix.allowed(need.models)
    for container in need.containers:
        fits &= _card_reasons(matrix, rows, container, allowed) == USABLE
    if len(need.containers) > 1:
        held = allocation_on_one_card(need)
        fits &= (
            (matrix.free_mib[rows] >= held.mib)
            & (matrix.free_cores[rows] >= held.cores)
            & (matrix.free_slots[rows] >= held.slots)
        )
    return fits


def obstacle(reasons: Iterable[FitReason | None]) -> Obstacle:
    """Return the obstacle nearest to fitting among all reasons of a node and its cards."""
    met = {OBSTACLES[reason] for reason in reasons if reason is not None}
    return next((kind for kind in Obstacle if kind in met), Obstacle.NO_CARDS)


def refusal(counted: Mapping[Obstacle, int]) -> str:
    """Return why none of the counted nodes fits, the commonest obstacle first.

    kube-scheduler puts the number of nodes before the text, so it begins as its own reasons do.
    """
    ranked = sorted(counted.items(), key=lambda item: (-item[1], list(Obstacle).index(item[0])))
    summary = ", ".join(f"{count} {kind.value}" for kind, count in ranked)
    return f"node(s) without a fitting card ({summary}; fracgpu explain says more)"


def _card_reasons(
    matrix: NodeMatrix, rows: IntArray, need: ContainerNeed, allowed: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Return each card's reason against a container, [row, column]; 0 for none, ABSENT if no card.

    Of several reasons the one that `place` gives counts. It checks them in the opposite order, so
    that a later assignment here overwrites an earlier one.
    """
    reason: NDArray[np.int8] = matrix.state[rows]
    usable = reason == USABLE
    free = matrix.free_mib[rows]
    reason[usable & (matrix.free_slots[rows] < 1)] = _NO_FREE_SLOT
    # Less than nothing is free where a card holds more than it has: no pod fits, with cores or not.
    reason[usable & (need.cores > matrix.free_cores[rows])] = _TOO_FEW_CORES
    reason[usable & (need.mib > free)] = _TOO_LITTLE_FREE
    if need.share is not None:
        capacity = matrix.capacity_mib[rows]
        for size in np.unique(capacity).tolist():
            if share_of(need.share, capacity_mib=Mib(size)) != need.mib:
                reason[usable & (capacity == size)] = _WRONG_CLASS
    if not allowed.all():
        reason[usable & ~allowed[matrix.model[rows]]] = _WRONG_MODEL
    return reason


def _unfit_verdicts(reason: NDArray[np.int8]) -> IntArray:
    """Return the verdicts [row] of nodes with too few fitting cards; *reason* is [row, column]."""
    cards = (reason != ABSENT).sum(1, dtype=np.int64)
    verdict: IntArray = cards << _WHOLE_BITS
    some_fit = (reason == USABLE).any(1)
    verdict += np.where(some_fit, _TOO_FEW_CARDS, 0)
    for position, _ in enumerate(_OF_CARDS):
        count = (reason == position + 1).sum(1, dtype=np.int64)
        verdict += count << (_WHOLE_BITS + _COUNT_BITS * (position + 1))
    return verdict


def verdict_of(answer: NoPlacement) -> int:
    """Return the verdict of a node on which a pod does not fit."""
    counted = Counter(answer.refusals.values())
    whole = 0 if answer.whole is None else _WHOLE.index(answer.whole)
    verdict = whole + (max(answer.cards, len(answer.refusals)) << _WHOLE_BITS)
    for position, reason in enumerate(_OF_CARDS):
        verdict += counted[reason] << (_WHOLE_BITS + _COUNT_BITS * (position + 1))
    return verdict


def _decode(verdict: int) -> tuple[Obstacle, bool]:
    whole_number = verdict & (2**_WHOLE_BITS - 1)
    if whole_number == UNKNOWN:
        return Obstacle.NO_CARDS, True  # it may fit once it is reported
    rest = verdict >> (_WHOLE_BITS + _COUNT_BITS)
    reasons = {_WHOLE[whole_number]}
    for reason in _OF_CARDS:
        if rest & _COUNT_MASK:
            reasons.add(reason)
        rest >>= _COUNT_BITS
    return obstacle(reasons), bool(reasons & RESOLVABLE)
