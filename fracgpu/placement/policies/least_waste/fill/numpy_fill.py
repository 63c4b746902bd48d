"""The fill of nodes in NumPy, for machines for which none is compiled; see `compiled_fill`.

The answers of both are equal to the bit.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.pod_sequences import (
    NO_ROOM,
    SEQUENCES,
    SLOT_BITS,
    SLOTS,
    WHOLE,
    PodSequences,
)

Codes = NDArray[np.uint16]

Number = TypeVar("Number", np.uint16, np.int32)


class NumpyFill:
    """Fills nodes with the pods of *pods*, many nodes at once.

    Attributes:
        pairs_per_ms: as in `CompiledFill`, with a batch of nodes.
    """

    pairs_per_ms: ClassVar[int] = 500

    def __init__(self, pods: PodSequences) -> None:
        self._pods = pods
        self._several = _SeveralCards(pods.several, pods.several_cpu)
        # 1 if the pod takes a card, 0 if it takes only CPU.
        self._on_cards = (pods.share > 0).astype(np.uint16)

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
        need, share = self._pods.cpu.take(model, axis=1), self._pods.share.take(model, axis=1)
        on_cards = self._on_cards.take(model, axis=1)
        several = self._several.take(model, (levels == WHOLE_CARD_MILLI).sum(1))
        cpu = np.repeat(cpu_milli[:, None], SEQUENCES, axis=1)
        cards = _coded(levels)
        room = np.empty((*cards.shape[:2], 2, SEQUENCES), np.uint16)
        for step in range(len(self._pods.cpu)):
            if several.starts[step] < several.starts[step + 1]:
                _take_whole_cards(cards, cpu, *several.at(step))
            # What each card would have left. Without room the unsigned difference wraps round to
            # NO_ROOM or more, so the smallest one belongs to the tightest card with room.
            np.subtract(cards[:, :, None], share[step], out=room)
            tight = np.minimum.reduce(room, axis=0)
            runs = (tight < NO_ROOM) & (cpu[:, None] >= need[step])
            left = np.where(runs, (tight >> SLOT_BITS) * on_cards[step], np.uint16(NO_ROOM))
            # Of a tie the first pod runs. Whoever does not run takes nothing: *runs* is 0.
            second = left[:, 1] < left[:, 0]
            taken = _of_two(second, share[step] * runs)
            # tight + share is the code of the card as it was, and codes are unique on a node.
            cards -= (cards == _of_two(second, tight + share[step])) * taken
            cpu -= _of_two(second, need[step] * runs)
        waste: NDArray[np.float32] = (
            (cards >> SLOT_BITS).sum(0, dtype=np.int32).mean(1, dtype=np.float32)
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
    codes = live.astype(np.uint16) * np.uint16(SLOTS) + np.arange(live.shape[1], dtype=np.uint16)
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
    whole = these >= WHOLE
    rank = whole.cumsum(0)
    runs = (rank[-1] >= several) & (cpu[columns] >= need)
    if runs.any():
        taken = whole & (rank <= several * runs)
        cards[:, *columns] = these - taken * np.uint16(WHOLE)
        cpu[columns] -= need * runs
