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

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.random import Philox  # NumPy imports it late, and that takes 15 ms
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, Demand, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.compiled_fill import CompiledFill
from fracgpu.placement.policies.least_waste.fill.numpy_fill import NumpyFill
from fracgpu.placement.policies.least_waste.fill.pod_sequences import (
    NO_ROOM,
    SEQUENCES,
    SLOTS,
    PodSequences,
)
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# A sequence requests this many cards by the mix's mean, nearly four times the cards of an ordinary
# node with eight, so that the node is full before the sequence ends.
_CARDS_DRAWN: Final = 30

_FEWEST_PODS, _MOST_PODS = 24, 128

# A remainder that fewer than this share of the pods could use counts as lost. This is closer to
# what happens than a fill of 40 draws, which finds even the rarest pod (many remainders of 0.19
# wait for the same pod of 0.16), and it leaves far fewer states to evaluate.
LOST_BELOW_RATIO: Final = 0.01

_SEED: Final = 20_261_120


class Fill(Protocol):
    """Fills copies of nodes with pods that were drawn.

    Attributes:
        pairs_per_ms: about how many pairs of pods are placed in a millisecond.
    """

    pairs_per_ms: ClassVar[int]

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float32]: ...


def fastest_fill(pods: PodSequences, *, problem: str | None = CompiledFill.problem) -> Fill:
    """Return the compiled fill, or the one in NumPy if there is a *problem* with that."""
    return CompiledFill(pods) if problem is None else NumpyFill(pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPods:
    """The pods that were drawn from a mix, for each card model.

    Attributes:
        pods: what a fill reads.
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
        of_model: by model, what may be drawn, and [step, pod of the pair, sequence] what was.
    """

    pods: PodSequences
    lost_milli: NDArray[np.int16]
    of_model: Mapping[int, tuple[Sequence[Demand], IntArray]]


def drawing(classes: Sequence[PodClass], models: Sequence[str]) -> Generator[None, None, DrawnPods]:
    """Draw the pods that fill nodes, one card model in each step, and return them.

    Args:
        classes: the workload's mix.
        models: the card models; nodes refer to them by index.
    """
    length = _length(classes)
    shape = (length, len(models), 2, SEQUENCES)
    several = np.zeros((length, len(models), SEQUENCES), np.int16)
    pods = PodSequences(
        cpu=np.zeros(shape, np.int32),
        # With NO_ROOM a pod has room on no card: pods on several cards, models without pods.
        share=np.full(shape, NO_ROOM, np.uint16),
        several=several,
        several_cpu=np.zeros_like(several, np.int32),
    )
    lost_milli = np.zeros(len(models), np.int16)
    of_model: dict[int, tuple[Sequence[Demand], IntArray]] = {}
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
            lost_milli[index] = _lost_below(accepted)
            of_model[index] = _draw(pods, index, accepted)
        yield
    return DrawnPods(pods=pods, lost_milli=lost_milli, of_model=of_model)


def _draw(
    pods: PodSequences, index: int, classes: Sequence[PodClass]
) -> tuple[Sequence[Demand], IntArray]:
    """Draw the pods of one card model into *pods*; return what `DrawnPods.of_model` has of it."""
    length = len(pods.cpu)
    weights = np.array([pod_class.frequency_ratio for pod_class in classes])
    # Stratified: each class gets its exact share of all draws, in shuffled order.
    size = length * 2 * SEQUENCES
    ends = np.cumsum(weights) / weights.sum()
    drawn = np.searchsorted(ends, (np.arange(size) + 0.5) / size)
    # A bit generator's raw stream stays the same in every release of NumPy.
    shuffled = np.argsort(Philox(_SEED).random_raw(size), kind="stable")
    drawn = np.minimum(drawn, len(classes) - 1)[shuffled].reshape(length, 2, SEQUENCES)
    demands = [pod_class.demand for pod_class in classes]
    most_cpu = np.iinfo(np.int32).max
    cpu = np.array([min(demand.cpu_milli, most_cpu) for demand in demands], np.int32)
    share = np.array(
        [demand.share_milli * SLOTS if demand.cards <= 1 else NO_ROOM for demand in demands],
        np.uint16,
    )
    several = np.array(
        [min(demand.cards, MAX_CARDS + 1) if demand.cards > 1 else 0 for demand in demands],
        np.int16,
    )
    pods.cpu[:, index] = cpu[drawn]
    pods.share[:, index] = share[drawn]
    # A pod without cards leaves the same remainders on any node: it runs only as the first.
    second = pods.share[:, index, 1]
    second[second == 0] = NO_ROOM
    first, other = several[drawn[:, 0]], several[drawn[:, 1]]
    pods.several[:, index] = np.where(first > 0, first, other)
    pods.several_cpu[:, index] = np.where(first > 0, pods.cpu[:, index, 0], pods.cpu[:, index, 1])
    return demands, drawn


class FillSequences:
    """The pods that fill nodes, by card model.

    Args:
        drawn: the pods.
        fill: what fills nodes; each kind gives the same answers.

    Attributes:
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
        fill: what fills nodes.
    """

    def __init__(
        self, drawn: DrawnPods, *, fill: Callable[[PodSequences], Fill] = fastest_fill
    ) -> None:
        self._drawn = drawn.of_model
        self._length = len(drawn.pods.cpu)
        self.lost_milli = drawn.lost_milli
        self.fill = fill(drawn.pods)

    def drawn(self, *, model: int, sequence: int) -> tuple[tuple[Demand, Demand], ...]:
        """Return the pairs of pods of one sequence, in order."""
        demands, drawn = self._drawn[model]
        pairs = drawn[:, :, sequence].tolist()
        return tuple((demands[first], demands[second]) for first, second in pairs)

    def fills_in(self, time_ms: int) -> int:
        """Return how many nodes are filled in about that time: a count, whatever the load."""
        return max(1, time_ms * self.fill.pairs_per_ms // max(1, self._length))

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float32]:
        """Return the thousandths of cards expected to stay idle on each node, [node].

        Args:
            levels: [node, card] free thousandths; 0 where there is no card.
            cpu_milli: [node] free thousandths of a core.
            model: [node] index of the card model.
        """
        return self.fill.expected_waste_milli(levels, cpu_milli, model)


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
