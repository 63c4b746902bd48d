"""How much of a node's cards will be left idle once the node is full: an expectation.

A copy of the node is filled with pods drawn from the workload's mix, again and again, each on the
tightest card that has room, until the sequence ends; what is idle then is averaged over many
sequences. That one number holds stranded CPU, shares that pair badly and remainders of cards.

The sequences are drawn once, from a fixed seed and in exact proportion to the mix, and are the same
for every node of a card model: two nodes, or one node before and after a pod, are compared under
the same luck, and the same mix always gives the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.policies.workload_mix import WHOLE_CARD_MILLI, PodClass, Want

SEQUENCES: Final = 64
# A sequence is long enough to fill the widest ordinary node nearly four times over, so that it is
# the node that says no at the end: eight cards, at the mix's mean cards for each pod.
_CARDS_DRAWN: Final = 30
_FEWEST_PODS, _MOST_PODS = 24, 128
MAX_CARDS: Final = 32

# A remainder that fewer than this share of the pods could use is as good as lost: taking it for
# lost is truer than a fill of 40 draws, which finds even the rarest pod (a remainder of 0.19 waits
# for a pod of 0.16 with many others), and it leaves far fewer states to evaluate.
LOST_BELOW_RATIO: Final = 0.01

_SEED: Final = 20_261_120
# A card in a fill is one uint16: its free level times _SLOTS plus its number, so that no two cards
# of a node are equal and the smallest that has room is *the* tightest card.
_SLOTS: Final = MAX_CARDS
_WHOLE: Final = WHOLE_CARD_MILLI * _SLOTS
_NO_ROOM: Final = 2**15  # above every code; taken from any code, it wraps round to at least itself

Levels = NDArray[np.int16]
Codes = NDArray[np.uint16]
Index = NDArray[np.int64]


class FillSequences:
    """The pods that fill nodes, per card model.

    Args:
        classes: the workload's mix.
        models: the card models; a node is known by the index of its model in here.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        self._length = _length(classes)
        shape = (self._length, len(models), SEQUENCES)
        self._cpu = np.zeros(shape, np.int32)
        # What is taken of one card; a pod of several cards takes nothing in the common step.
        self._share = np.full(shape, _NO_ROOM, np.uint16)
        several = np.zeros(shape, np.int16)
        self._drawn: list[list[list[Want]]] = [[[]] * SEQUENCES for _ in models]
        self.lost_milli = np.zeros(len(models), np.int16)
        for index, model in enumerate(models):
            welcome = sorted(
                (it for it in classes if it.want.accepts(model)),
                key=lambda it: (it.want.cards, it.want.share_milli, it.want.cpu_milli),
            )
            if welcome:
                self.lost_milli[index] = _lost_below(welcome)
                several[:, index] = self._draw(index, welcome)
        self._several = _SeveralCards(several)

    def _draw(self, index: int, classes: Sequence[PodClass]) -> NDArray[np.int16]:
        weights = np.array([it.frequency_ratio for it in classes])
        size = self._length * SEQUENCES
        ends = np.cumsum(weights) / weights.sum()
        drawn = np.searchsorted(ends, (np.arange(size) + 0.5) / size)
        # A bit generator's raw stream stays the same in every release of NumPy.
        shuffled = np.argsort(np.random.Philox(_SEED).random_raw(size), kind="stable")
        drawn = np.minimum(drawn, len(classes) - 1)[shuffled]
        drawn = drawn.reshape(self._length, SEQUENCES)
        wants = [it.want for it in classes]
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
        self._drawn[index] = [[wants[it] for it in row] for row in drawn.T]
        return several[drawn]

    def drawn(self, *, model: int, sequence: int) -> tuple[Want, ...]:
        """Give the pods of one sequence, in the order in which they come to a node."""
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
        several = self._several.take(model, (levels == WHOLE_CARD_MILLI).sum(1))
        cpu = np.repeat(cpu_milli[:, None], SEQUENCES, axis=1)
        cards = _coded(levels)
        room = np.empty_like(cards)
        for step in range(self._length):
            # What each card would have left; a card without room wraps round to more than any has,
            # so the smallest figure belongs to the tightest card that has room.
            np.subtract(cards, share[step], out=room)
            tight = np.minimum.reduce(room, axis=0)
            runs = (tight < _NO_ROOM) & (cpu >= need[step])
            np.multiply(room == tight, share[step] * runs, out=room)
            cards -= room
            cpu -= need[step] * runs
            if several.starts[step] < several.starts[step + 1]:
                here, count = several.at(step)
                _take_whole_cards(cards, cpu, here, need[step][here], count)
        left: NDArray[np.float32] = (
            (cards // _SLOTS).sum(0, dtype=np.int32).mean(1, dtype=np.float32)
        )
        return left


@dataclass(frozen=True, slots=True)
class _Columns:
    """Pods of several cards by step: in which columns [node, sequence], and how many cards each."""

    node: Index
    sequence: Index
    count: NDArray[np.int16]
    starts: list[int]

    def at(self, step: int) -> tuple[tuple[Index, Index], NDArray[np.int16]]:
        part = slice(self.starts[step], self.starts[step + 1])
        return (self.node[part], self.sequence[part]), self.count[part]


class _SeveralCards:
    """The few pods of several cards that the sequences hold, listed for each model."""

    def __init__(self, several: NDArray[np.int16]) -> None:
        self._length, models, _ = several.shape
        widest = int((several > 0).sum((0, 2)).max(initial=0))
        self._step = np.zeros((models, widest), np.int64)
        self._sequence = np.zeros((models, widest), np.int64)
        self._count = np.full((models, widest), np.iinfo(np.int16).max, np.int16)
        for model in range(models):
            step, sequence = np.nonzero(several[:, model])
            self._step[model, : len(step)] = step
            self._sequence[model, : len(step)] = sequence
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
    cards = sum(it.frequency_ratio * it.want.gpu_milli for it in classes) / WHOLE_CARD_MILLI
    return min(max(round(_CARDS_DRAWN / cards), _FEWEST_PODS), _MOST_PODS) if cards else 0


def _lost_below(classes: Sequence[PodClass]) -> int:
    """Find the largest remainder of a card that almost no pod of these could use."""
    enough = LOST_BELOW_RATIO * sum(it.frequency_ratio for it in classes)
    seen = 0.0
    for it in classes:  # sorted by cards, then share: shares come right after the CPU-only pods
        if it.want.cards == 1 and it.want.share_milli < WHOLE_CARD_MILLI:
            seen += it.frequency_ratio
            if seen > enough:
                return it.want.share_milli - 1
    return WHOLE_CARD_MILLI - 1
