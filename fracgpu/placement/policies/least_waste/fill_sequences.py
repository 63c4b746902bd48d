"""How much of a node's cards will be left idle once the node is full: an expectation.

A copy of the node is filled with pods drawn from the workload's mix, again and again, until the
sequence ends; what is idle then is averaged over many sequences. That one number holds stranded
CPU, shares that pair badly and remainders of cards.

Pods come to a node in pairs, and the one that leaves less of its card runs there, on the tightest
card that has room: the other one found a better node. A fill that takes whatever comes first
expects more waste than a cluster has that chooses among many nodes.

The sequences are drawn once, from a fixed seed and in exact proportion to the mix, and are the same
for every node of a card model: two nodes, or one node before and after a pod, are compared under
the same luck, and the same mix always gives the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, Demand, Index, Levels
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

SEQUENCES: Final = 32

# A sequence is long enough to fill the widest ordinary node nearly four times over, so that it is
# the node that says no at the end: eight cards, at the mix's mean cards for each pod.
_CARDS_DRAWN: Final = 30

_FEWEST_PODS, _MOST_PODS = 24, 128

# A remainder that fewer than this share of the pods could use is as good as lost: taking it for
# lost is truer than a fill of 40 draws, which finds even the rarest pod (a remainder of 0.19 waits
# for a pod of 0.16 with many others), and it leaves far fewer states to evaluate.
LOST_BELOW_RATIO: Final = 0.01

_SEED: Final = 20_261_120

# A card in a fill is one uint16: its free level times _SLOTS plus its number, so that no two cards
# of a node are equal and the smallest that has room is *the* tightest card.
_SLOT_BITS: Final = 5

_SLOTS: Final = 1 << _SLOT_BITS

_WHOLE: Final = WHOLE_CARD_MILLI * _SLOTS

_NO_ROOM: Final = 2**15  # above every code; taken from any code, it wraps round to at least itself

Codes = NDArray[np.uint16]

Number = TypeVar("Number", np.uint16, np.int32)


class FillSequences:
    """The pods that fill nodes, per card model.

    Args:
        classes: the workload's mix.
        models: the card models; a node is known by the index of its model in here.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        self._length = _length(classes)
        shape = (self._length, len(models), 2, SEQUENCES)
        self._cpu = np.zeros(shape, np.int32)
        # What is taken of one card; a pod of several cards takes nothing in the common step.
        self._share = np.full(shape, _NO_ROOM, np.uint16)
        several = np.zeros((self._length, len(models), SEQUENCES), np.int16)
        cpu = np.zeros_like(several, np.int32)
        self._drawn: list[list[list[tuple[Demand, Demand]]]] = [[[]] * SEQUENCES for _ in models]
        self.lost_milli = np.zeros(len(models), np.int16)
        for index, model in enumerate(models):
            welcome = sorted(
                (it for it in classes if it.demand.accepts(model)),
                key=lambda it: (it.demand.cards, it.demand.share_milli, it.demand.cpu_milli),
            )
            if welcome:
                self.lost_milli[index] = _lost_below(welcome)
                several[:, index], cpu[:, index] = self._draw(index, welcome)
        self._several = _SeveralCards(several, cpu)
        self._on_cards = (self._share > 0).astype(np.uint16)

    def _draw(
        self, index: int, classes: Sequence[PodClass]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        weights = np.array([it.frequency_ratio for it in classes])
        size = self._length * 2 * SEQUENCES
        ends = np.cumsum(weights) / weights.sum()
        drawn = np.searchsorted(ends, (np.arange(size) + 0.5) / size)
        # A bit generator's raw stream stays the same in every release of NumPy.
        shuffled = np.argsort(np.random.Philox(_SEED).random_raw(size), kind="stable")
        drawn = np.minimum(drawn, len(classes) - 1)[shuffled].reshape(self._length, 2, SEQUENCES)
        wants = [it.demand for it in classes]
        most_cpu = np.iinfo(np.int32).max
        cpu = np.array([min(it.cpu_milli, most_cpu) for it in wants], np.int32)
        share = np.array(
            [it.share_milli * _SLOTS if it.cards <= 1 else _NO_ROOM for it in wants], np.uint16
        )
        several = np.array(
            [min(it.cards, MAX_CARDS + 1) if it.cards > 1 else 0 for it in wants], np.int16
        )
        self._cpu[:, index] = cpu[drawn]
        self._share[:, index] = share[drawn]
        # A pod without cards is no better here or there: it runs here if it came first.
        second = self._share[:, index, 1]
        second[second == 0] = _NO_ROOM
        self._drawn[index] = [
            [(wants[one], wants[other]) for one, other in drawn[:, :, it].tolist()]
            for it in range(SEQUENCES)
        ]
        first, other = several[drawn[:, 0]], several[drawn[:, 1]]
        need = np.where(first > 0, self._cpu[:, index, 0], self._cpu[:, index, 1])
        return np.where(first > 0, first, other), need

    def drawn(self, *, model: int, sequence: int) -> tuple[tuple[Demand, Demand], ...]:
        """Give the pairs of pods of one sequence, in the order in which they come to a node."""
        return tuple(self._drawn[model][sequence])

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: Index
    ) -> NDArray[np.float32]:
        """Fill copies of nodes and average what stays idle.

        Args:
            levels: free thousandths of each card, one row for each node, 0 where there is no card.
            cpu_milli: free CPU of each node.
            model: index of each node's card model.
        """
        need, share = self._cpu.take(model, axis=1), self._share.take(model, axis=1)
        on_cards = self._on_cards.take(model, axis=1)
        several = self._several.take(model, (levels == WHOLE_CARD_MILLI).sum(1))
        cpu = np.repeat(cpu_milli[:, None], SEQUENCES, axis=1)
        cards = _coded(levels)
        room = np.empty((*cards.shape[:2], 2, SEQUENCES), np.uint16)
        for step in range(self._length):
            if several.starts[step] < several.starts[step + 1]:
                _take_whole_cards(cards, cpu, *several.at(step))
            # What each card would have left; a card without room wraps round to more than any has,
            # so the smallest figure belongs to the tightest card that has room.
            np.subtract(cards[:, :, None], share[step], out=room)
            tight = np.minimum.reduce(room, axis=0)
            runs = (tight < _NO_ROOM) & (cpu[:, None] >= need[step])
            left = np.where(runs, (tight >> _SLOT_BITS) * on_cards[step], np.uint16(_NO_ROOM))
            second = left[:, 1] < left[:, 0]
            taken = _of_two(second, share[step] * runs)
            cards -= (cards == _of_two(second, tight + share[step])) * taken
            cpu -= _of_two(second, need[step] * runs)
        waste: NDArray[np.float32] = (
            (cards >> _SLOT_BITS).sum(0, dtype=np.int32).mean(1, dtype=np.float32)
        )
        return waste


def _of_two(second: NDArray[np.bool_], pair: NDArray[Number]) -> NDArray[Number]:
    return np.where(second, pair[:, 1], pair[:, 0])


@dataclass(frozen=True, slots=True)
class _Columns:
    """Pods of several cards by step: in which columns [node, sequence], and what they need."""

    node: Index
    sequence: Index
    count: NDArray[np.int16]
    cpu: NDArray[np.int32]
    starts: list[int]

    def at(self, step: int) -> tuple[tuple[Index, Index], NDArray[np.int32], NDArray[np.int16]]:
        part = slice(self.starts[step], self.starts[step + 1])
        return (self.node[part], self.sequence[part]), self.cpu[part], self.count[part]


class _SeveralCards:
    """The few pods of several cards that the sequences hold, listed for each model.

    One such pod in a pair runs if it can, and the other one as well: it is rare, and what it leaves
    of its cards is nothing.
    """

    def __init__(self, several: NDArray[np.int16], cpu: NDArray[np.int32]) -> None:
        self._length, models, _ = several.shape
        widest = int((several > 0).sum((0, 2)).max(initial=0))
        self._step = np.zeros((models, widest), np.int64)
        self._sequence = np.zeros((models, widest), np.int64)
        self._cpu = np.zeros((models, widest), np.int32)
        self._count = np.full((models, widest), np.iinfo(np.int16).max, np.int16)
        for model in range(models):
            step, sequence = np.nonzero(several[:, model])
            self._step[model, : len(step)] = step
            self._sequence[model, : len(step)] = sequence
            self._cpu[model, : len(step)] = cpu[step, model, sequence]
            self._count[model, : len(step)] = several[step, model, sequence]

    def take(self, model: Index, idle_cards: Index) -> _Columns:
        """List them for nodes, leaving out those that a node could not take even now."""
        count = self._count[model]
        node, entry = np.nonzero(count <= idle_cards[:, None])
        step = self._step[model[node], entry]
        order = np.argsort(step, kind="stable")
        node, entry, step = node[order], entry[order], step[order]
        return _Columns(
            node=node,
            sequence=self._sequence[model[node], entry],
            count=count[node, entry],
            cpu=self._cpu[model[node], entry],
            starts=np.searchsorted(step, np.arange(self._length + 1)).tolist(),
        )


def _coded(levels: Levels) -> Codes:
    """Lay out cards as codes [card, node, sequence], leaving out columns where none is live."""
    live = -np.sort(-levels, axis=1)
    live = live[:, : max(1, int((live > 0).sum(1).max(initial=0)))]
    codes = live.astype(np.uint16) * np.uint16(_SLOTS) + np.arange(live.shape[1], dtype=np.uint16)
    return np.repeat(codes.T[:, :, None], SEQUENCES, axis=2)


def _take_whole_cards(
    cards: Codes,
    cpu: NDArray[np.int32],
    columns: tuple[Index, Index],
    need: NDArray[np.int32],
    several: NDArray[np.int16],
) -> None:
    """Place pods of several whole cards, one in each of *columns*, in place."""
    these = cards[:, *columns]
    whole = these >= _WHOLE
    rank = whole.cumsum(0)
    runs = (rank[-1] >= several) & (cpu[columns] >= need)
    if runs.any():
        taken = whole & (rank <= several * runs)
        cards[:, *columns] = these - taken * np.uint16(_WHOLE)
        cpu[columns] -= need * runs


def _length(classes: Sequence[PodClass]) -> int:
    cards = sum(it.frequency_ratio * it.demand.gpu_milli for it in classes) / WHOLE_CARD_MILLI
    return min(max(round(_CARDS_DRAWN / cards), _FEWEST_PODS), _MOST_PODS) if cards else 0


def _lost_below(classes: Sequence[PodClass]) -> int:
    """Find the largest remainder of a card that almost no pod of these could use."""
    enough = LOST_BELOW_RATIO * sum(it.frequency_ratio for it in classes)
    seen = 0.0
    for it in classes:  # sorted by cards, then share: shares come right after the CPU-only pods
        if it.demand.cards == 1 and it.demand.share_milli < WHOLE_CARD_MILLI:
            seen += it.frequency_ratio
            if seen > enough:
                return it.demand.share_milli - 1
    return WHOLE_CARD_MILLI - 1
