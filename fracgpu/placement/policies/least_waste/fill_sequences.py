"""How much of a node's cards is expected to stay idle once the node is full.

A copy of the node is filled with a sequence of pods drawn from the workload's mix; what is idle at
the end is averaged over many sequences. That one number covers stranded CPU, shares that do not add
up to a card and remainders of cards.

Each step of a sequence offers two pods, and the one that leaves less of its card runs, on the
tightest card with room; the other is taken to run on a better node. A fill that takes every pod in
turn would expect more waste than a cluster has that chooses among many nodes.

The sequences are drawn once, from a fixed seed and in exact proportion to the mix, and are the same
for every node of a card model. Two nodes, or one node before and after a pod, are thus compared
with the same random numbers, and the same mix always gives the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, Demand, IntArray, Levels
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

SEQUENCES: Final = 32

# A sequence requests this many cards by the mix's mean, nearly four times the cards of an ordinary
# node with eight, so that the node is full before the sequence ends.
_CARDS_DRAWN: Final = 30

_FEWEST_PODS, _MOST_PODS = 24, 128

# A remainder that fewer than this share of the pods could use counts as lost. This is closer to
# what happens than a fill of 40 draws, which finds even the rarest pod (many remainders of 0.19
# wait for the same pod of 0.16), and it leaves far fewer states to evaluate.
LOST_BELOW_RATIO: Final = 0.01

_SEED: Final = 20_261_120

# In a fill a card is one uint16 code: its free thousandths times _SLOTS plus its position among the
# node's cards. No two cards of a node have equal codes, so the smallest code with room is one card,
# the tightest.
# The largest code is 1000 * 32 + 31 = 32,031, below 2**15: bit 15 is free to mark "no room".
_SLOT_BITS: Final = 5

_SLOTS: Final = 1 << _SLOT_BITS

_WHOLE: Final = WHOLE_CARD_MILLI * _SLOTS

_NO_ROOM: Final = 2**15  # above every code; a code less this wraps round to this or more

Codes = NDArray[np.uint16]

Number = TypeVar("Number", np.uint16, np.int32)


class FillSequences:
    """The pods that fill nodes, by card model.

    The arrays are [step, model, pod of the pair, sequence]:

    - ``_cpu``: thousandths of a core that the pod requests;
    - ``_share``: what the pod takes of its card, as a code (thousandths times _SLOTS); _NO_ROOM for
      a pod on several cards, which is placed apart;
    - ``_on_cards``: 1 if the pod takes a card, 0 if it takes only CPU.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.

    Attributes:
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
    """

    def __init__(self, classes: Sequence[PodClass], models: Sequence[str]) -> None:
        self._length = _length(classes)
        shape = (self._length, len(models), 2, SEQUENCES)
        self._cpu = np.zeros(shape, np.int32)
        # With _NO_ROOM a pod has room on no card: pods on several cards, and models without pods.
        self._share = np.full(shape, _NO_ROOM, np.uint16)
        # [step, model, sequence]: cards and CPU of the pod on several cards, if the pair has one.
        several = np.zeros((self._length, len(models), SEQUENCES), np.int16)
        cpu = np.zeros_like(several, np.int32)
        self._drawn: list[list[list[tuple[Demand, Demand]]]] = [[[]] * SEQUENCES for _ in models]
        self.lost_milli = np.zeros(len(models), np.int16)
        for index, model in enumerate(models):
            accepted = sorted(
                (pod_class for pod_class in classes if pod_class.demand.accepts(model)),
                key=lambda pod_class: (
                    pod_class.demand.cards,
                    pod_class.demand.share_milli,
                    pod_class.demand.cpu_milli,
                ),
            )
            if accepted:
                self.lost_milli[index] = _lost_below(accepted)
                several[:, index], cpu[:, index] = self._draw(index, accepted)
        self._several = _SeveralCards(several, cpu)
        self._on_cards = (self._share > 0).astype(np.uint16)

    def _draw(
        self, index: int, classes: Sequence[PodClass]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        weights = np.array([pod_class.frequency_ratio for pod_class in classes])
        # Stratified: each class gets its exact share of all draws, in shuffled order.
        size = self._length * 2 * SEQUENCES
        ends = np.cumsum(weights) / weights.sum()
        drawn = np.searchsorted(ends, (np.arange(size) + 0.5) / size)
        # A bit generator's raw stream stays the same in every release of NumPy.
        shuffled = np.argsort(np.random.Philox(_SEED).random_raw(size), kind="stable")
        drawn = np.minimum(drawn, len(classes) - 1)[shuffled].reshape(self._length, 2, SEQUENCES)
        demands = [pod_class.demand for pod_class in classes]
        most_cpu = np.iinfo(np.int32).max
        cpu = np.array([min(demand.cpu_milli, most_cpu) for demand in demands], np.int32)
        share = np.array(
            [demand.share_milli * _SLOTS if demand.cards <= 1 else _NO_ROOM for demand in demands],
            np.uint16,
        )
        several = np.array(
            [min(demand.cards, MAX_CARDS + 1) if demand.cards > 1 else 0 for demand in demands],
            np.int16,
        )
        self._cpu[:, index] = cpu[drawn]
        self._share[:, index] = share[drawn]
        # A pod without cards leaves the same remainders on any node: it runs only as the first.
        second = self._share[:, index, 1]
        second[second == 0] = _NO_ROOM
        self._drawn[index] = [
            [(demands[one], demands[other]) for one, other in drawn[:, :, sequence].tolist()]
            for sequence in range(SEQUENCES)
        ]
        first, other = several[drawn[:, 0]], several[drawn[:, 1]]
        need = np.where(first > 0, self._cpu[:, index, 0], self._cpu[:, index, 1])
        return np.where(first > 0, first, other), need

    def drawn(self, *, model: int, sequence: int) -> tuple[tuple[Demand, Demand], ...]:
        """Return the pairs of pods of one sequence, in order."""
        return tuple(self._drawn[model][sequence])

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float32]:
        """Return the thousandths of cards expected to stay idle on each node, [node].

        Args:
            levels: [node, card] free thousandths; 0 where there is no card.
            cpu_milli: [node] free thousandths of a core.
            model: [node] index of the card model.
        """
        # need, share, on_cards: [step, node, pod of the pair, sequence]; cards (codes) and room:
        # [card, node, ..., sequence]; cpu, taken: [node, sequence].
        need, share = self._cpu.take(model, axis=1), self._share.take(model, axis=1)
        on_cards = self._on_cards.take(model, axis=1)
        several = self._several.take(model, (levels == WHOLE_CARD_MILLI).sum(1))
        cpu = np.repeat(cpu_milli[:, None], SEQUENCES, axis=1)
        cards = _coded(levels)
        room = np.empty((*cards.shape[:2], 2, SEQUENCES), np.uint16)
        for step in range(self._length):
            if several.starts[step] < several.starts[step + 1]:
                _take_whole_cards(cards, cpu, *several.at(step))
            # What each card would have left. Without room the unsigned difference wraps round to
            # _NO_ROOM or more, so the smallest one belongs to the tightest card with room.
            np.subtract(cards[:, :, None], share[step], out=room)
            tight = np.minimum.reduce(room, axis=0)
            runs = (tight < _NO_ROOM) & (cpu[:, None] >= need[step])
            left = np.where(runs, (tight >> _SLOT_BITS) * on_cards[step], np.uint16(_NO_ROOM))
            # Of a tie the first pod runs. Whoever does not run takes nothing: *runs* is 0.
            second = left[:, 1] < left[:, 0]
            taken = _of_two(second, share[step] * runs)
            # tight + share is the code of the card as it was, and codes are unique on a node.
            cards -= (cards == _of_two(second, tight + share[step])) * taken
            cpu -= _of_two(second, need[step] * runs)
        waste: NDArray[np.float32] = (
            (cards >> _SLOT_BITS).sum(0, dtype=np.int32).mean(1, dtype=np.float32)
        )
        return waste


def _of_two(second: NDArray[np.bool_], pair: NDArray[Number]) -> NDArray[Number]:
    """Return [node, sequence] of *pair* [node, pod of the pair, sequence]."""
    return np.where(second, pair[:, 1], pair[:, 0])


@dataclass(frozen=True, slots=True)
class _Columns:
    """The pods on several cards, ordered by step.

    Each pod belongs to one column of the fill, a pair of node and sequence. The entries of step *s*
    are ``starts[s]`` to ``starts[s + 1]``.
    """

    node: IntArray
    sequence: IntArray
    count: NDArray[np.int16]
    cpu: NDArray[np.int32]
    starts: list[int]

    def at(
        self, step: int
    ) -> tuple[tuple[IntArray, IntArray], NDArray[np.int32], NDArray[np.int16]]:
        part = slice(self.starts[step], self.starts[step + 1])
        return (self.node[part], self.sequence[part]), self.cpu[part], self.count[part]


class _SeveralCards:
    """The few pods on several cards in the sequences, listed by model.

    Such a pod of a pair runs if it fits, and then the other pod as well: it is rare, and it takes
    whole cards, so it leaves no remainder to compare. The arrays are [model, entry], padded with a
    count of cards that no node has.
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

    def take(self, model: IntArray, idle_cards: IntArray) -> _Columns:
        """Return the pods for each node, without those that need more cards than are idle."""
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
    """Return the codes of cards, [card, node, sequence], up to the most live cards of a node."""
    live = -np.sort(-levels, axis=1)
    live = live[:, : max(1, int((live > 0).sum(1).max(initial=0)))]
    codes = live.astype(np.uint16) * np.uint16(_SLOTS) + np.arange(live.shape[1], dtype=np.uint16)
    return np.repeat(codes.T[:, :, None], SEQUENCES, axis=2)


def _take_whole_cards(
    cards: Codes,
    cpu: NDArray[np.int32],
    columns: tuple[IntArray, IntArray],
    need: NDArray[np.int32],
    several: NDArray[np.int16],
) -> None:
    """Place one pod on several whole cards in each of *columns*, changing *cards* and *cpu*."""
    these = cards[:, *columns]
    whole = these >= _WHOLE
    rank = whole.cumsum(0)
    runs = (rank[-1] >= several) & (cpu[columns] >= need)
    if runs.any():
        taken = whole & (rank <= several * runs)
        cards[:, *columns] = these - taken * np.uint16(_WHOLE)
        cpu[columns] -= need * runs


def _length(classes: Sequence[PodClass]) -> int:
    cards = (
        sum(pod_class.frequency_ratio * pod_class.demand.gpu_milli for pod_class in classes)
        / WHOLE_CARD_MILLI
    )
    return min(max(round(_CARDS_DRAWN / cards), _FEWEST_PODS), _MOST_PODS) if cards else 0


def _lost_below(classes: Sequence[PodClass]) -> int:
    """Return the largest remainder of a card that almost none of these pods could use."""
    enough = LOST_BELOW_RATIO * sum(pod_class.frequency_ratio for pod_class in classes)
    seen = 0.0
    for (
        pod_class
    ) in classes:  # sorted by cards, then share: CPU-only pods, then shares, then more cards
        if pod_class.demand.cards == 1 and pod_class.demand.share_milli < WHOLE_CARD_MILLI:
            seen += pod_class.frequency_ratio
            if seen > enough:
                return pod_class.demand.share_milli - 1
    return WHOLE_CARD_MILLI - 1
