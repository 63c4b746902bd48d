"""What placement says of every node, for one need, in a few array sweeps.

The common pod has one container; whether and where it fits is worked out for all nodes at once.
Pods of several containers, and of several cards that must be neighbours, are searched node by node,
only where the sweep left a chance. Answers are kept, and worked out again only for nodes that
changed: prioritize after filter, or the next pod of the same kind, costs nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import ABSENT, SHARES, UNKNOWN, USABLE, NodeMatrix, Rows
from fracgpu.placement.outcome import FitReason, NoPlacement, Placement
from fracgpu.placement.placement import SCORING, is_linked, place
from fracgpu.placement.policies.scoring import Scoring
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.units import Mib, share_of

FITS: Final = 0

# A verdict is one number: 0 for yes; else four bits for the reason of the node as a whole, seven
# for its cards, and seven more for how many of them give each of seven reasons.
_WHOLE: Final = (
    None,
    FitReason.NOT_SHARED,
    FitReason.UNSCHEDULABLE,
    FitReason.NO_INVENTORY,
    None,  # a node that is not known
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
_WRONG_MODEL, _WRONG_CLASS, _TOO_LITTLE_FREE, _TOO_FEW_CORES, _NO_FREE_SLOT = 3, 4, 5, 6, 7
_WHOLE_BITS: Final = 4
_COUNT_BITS: Final = 7
_COUNT_MASK: Final = 2**_COUNT_BITS - 1
_TOO_FEW_CARDS: Final = _WHOLE.index(FitReason.TOO_FEW_CARDS)

_REMEDIED: Final = frozenset(
    {
        FitReason.TOO_LITTLE_FREE,
        FitReason.TOO_FEW_CORES,
        FitReason.NO_FREE_SLOT,
        FitReason.CONTAINERS_CLASH,
        FitReason.TOO_MANY_TRIES,
    }
)
_MOST_KEPT: Final = 256


class Obstacle(Enum):
    """What a node lacks, in few words and few kinds: those that are nearest to a yes come first.

    An event of kube-scheduler counts equal reasons of nodes and has 1,024 bytes for all of them;
    each card's own reason is for ``fracgpu explain`` to give.
    """

    MEMORY = "too little free memory"
    COMPUTE = "too little free compute or no free slot"
    TOGETHER = "too few cards that fit together"
    OTHER_CARDS = "another model or size than asked for"
    OUT_OF_SERVICE = "unhealthy, set aside or cordoned"
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
"""The obstacle that each reason is; every reason is one."""


class FitResult:
    """One need's verdict on every row of a board."""

    def __init__(self, need: PodNeed, strategy: Strategy) -> None:
        self._need = need
        self._strategy = strategy
        self._scoring: Scoring = SCORING[need.strategy or strategy]
        self._linked = is_linked(need, strategy=strategy)
        self._seen = -1
        self.verdict = np.zeros(0, np.int64)
        self.score = np.zeros(0, np.float64)

    def keep_up(self, matrix: NodeMatrix) -> None:
        """Work out anew what changed since the last time."""
        if self._seen == matrix.now:
            return
        missing = len(matrix.changed) - len(self.verdict)
        if missing:
            self.verdict = np.concatenate((self.verdict, np.zeros(missing, np.int64)))
            self.score = np.concatenate((self.score, np.zeros(missing)))
        rows = matrix.changed_since(self._seen)
        self._seen = matrix.now
        self.verdict[rows], self.score[rows] = self._judge(matrix, rows)

    def _judge(self, matrix: NodeMatrix, rows: Rows) -> tuple[Rows, NDArray[np.float64]]:
        node_state = matrix.node_state[rows].astype(np.int64)
        verdict = node_state.copy()
        score = np.zeros(len(rows))
        allowed = matrix.allowed(self._need.models)
        alone = len(self._need.containers) == 1
        here = np.flatnonzero(node_state == SHARES)
        for container in self._need.containers:
            reason = _reasons(matrix, rows[here], container, allowed)
            fitting = reason == USABLE
            enough = fitting.sum(1) >= container.cards
            verdict[here[~enough]] = _refusals(reason[~enough])
            here = here[enough]
            if not len(here):
                break
            if alone and not (self._linked and container.cards > 1):
                left = matrix.free_mib[rows[here]] - container.mib
                score[here] = self._scores(matrix, rows[here], left, fitting[enough], container)
                return verdict, score
        for at in here.tolist():
            verdict[at], score[at] = self._search(matrix, int(rows[at]))
        return verdict, score

    def _scores(
        self,
        matrix: NodeMatrix,
        rows: Rows,
        left_mib: Rows,
        fitting: NDArray[np.bool_],
        container: ContainerNeed,
    ) -> NDArray[np.float64]:
        left = left_mib / np.maximum(matrix.capacity_mib[rows], 1)
        each = np.where(fitting, self._scoring.score(left, matrix.heat[rows]), -np.inf)
        if container.cards == 1:
            best: NDArray[np.float64] = np.clip(each.max(1), 0.0, 1.0)
            return best
        each = -np.sort(-each, axis=1)
        total = np.zeros(len(rows))
        for column in range(container.cards):  # in this order, as `place` adds them up
            total += each[:, column]
        mean: NDArray[np.float64] = np.clip(total / container.cards, 0.0, 1.0)
        return mean

    def _search(self, matrix: NodeMatrix, row: int) -> tuple[int, float]:
        node_info = matrix.infos[row]
        assert node_info is not None, "a row that shares its cards is a node"
        answer = place(node_info, self._need, strategy=self._strategy)
        if isinstance(answer, Placement):
            return FITS, answer.score
        return _verdict_of(answer), 0.0


class FitIndex:
    """Answers by need, kept as long as they are asked for.

    Args:
        matrix: the cards.
    """

    def __init__(self, matrix: NodeMatrix) -> None:
        self.matrix = matrix
        self._kept: OrderedDict[tuple[PodNeed, Strategy], FitResult] = OrderedDict()
        self._read: dict[int, tuple[Obstacle, bool]] = {}

    def ask(self, need: PodNeed, *, strategy: Strategy, now: datetime) -> FitResult:
        """Judge every node for *need* as the ledger is now."""
        self.matrix.refresh(now=now)
        key = (need, strategy)
        answers = self._kept.get(key)
        if answers is None:
            answers = self._kept[key] = FitResult(need, strategy)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        answers.keep_up(self.matrix)
        return answers

    def why(self, verdict: int) -> tuple[Obstacle, bool]:
        """Say what a verdict that is not :data:`FITS` means, and whether preemption might help."""
        found = self._read.get(verdict)
        if found is None:
            if len(self._read) > 10 * _MOST_KEPT:
                self._read.clear()
            found = self._read[verdict] = _read(verdict)
        return found


def obstacle(reasons: Iterable[FitReason | None]) -> Obstacle:
    """Give the obstacle nearest to a yes of all the reasons that a node and its cards give."""
    met = {OBSTACLES[reason] for reason in reasons if reason is not None}
    return next((it for it in Obstacle if it in met), Obstacle.NO_CARDS)


def refusal(counted: Mapping[Obstacle, int]) -> str:
    """Say why none of so many nodes will do, the commonest obstacle first.

    kube-scheduler puts the number of nodes before it, so it begins as its own reasons do.
    """
    parts = sorted(counted.items(), key=lambda it: (-it[1], list(Obstacle).index(it[0])))
    said = ", ".join(f"{count} {it.value}" for it, count in parts)
    return f"node(s) without a fitting card ({said}; fracgpu explain says more)"


def may_preempt(answer: NoPlacement) -> bool:
    """Tell whether fewer pods on the node could turn the answer into a yes."""
    return bool({answer.whole, *answer.refusals.values()} & _REMEDIED)


def _reasons(
    matrix: NodeMatrix, rows: Rows, need: ContainerNeed, allowed: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Give each card's reason against a container, 0 for none; the first that holds."""
    reason = matrix.state[rows]
    usable = reason == USABLE
    free = matrix.free_mib[rows]
    reason[usable & (matrix.free_slots[rows] < 1)] = _NO_FREE_SLOT
    if need.cores:
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


def _refusals(reason: NDArray[np.int8]) -> Rows:
    """Write verdicts of nodes with too few fitting cards from the reason of each card."""
    cards = (reason != ABSENT).sum(1, dtype=np.int64)
    verdict: Rows = cards << _WHOLE_BITS
    some_fit = (reason == USABLE).any(1)
    verdict += np.where(some_fit, _TOO_FEW_CARDS, 0)
    for place_, _ in enumerate(_OF_CARDS):
        count = (reason == place_ + 1).sum(1, dtype=np.int64)
        verdict += count << (_WHOLE_BITS + _COUNT_BITS * (place_ + 1))
    return verdict


def _verdict_of(answer: NoPlacement) -> int:
    counted = Counter(answer.refusals.values())
    whole = 0 if answer.whole is None else _WHOLE.index(answer.whole)
    verdict = whole + (max(answer.cards, len(answer.refusals)) << _WHOLE_BITS)
    for place_, reason in enumerate(_OF_CARDS):
        verdict += counted[reason] << (_WHOLE_BITS + _COUNT_BITS * (place_ + 1))
    return verdict


def _read(verdict: int) -> tuple[Obstacle, bool]:
    whole_number = verdict & (2**_WHOLE_BITS - 1)
    if whole_number == UNKNOWN:
        return Obstacle.NO_CARDS, True  # it may still be reported
    rest = verdict >> (_WHOLE_BITS + _COUNT_BITS)
    reasons = {_WHOLE[whole_number]}
    for reason in _OF_CARDS:
        if rest & _COUNT_MASK:
            reasons.add(reason)
        rest >>= _COUNT_BITS
    return obstacle(reasons), bool(reasons & _REMEDIED)
