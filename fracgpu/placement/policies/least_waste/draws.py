"""The pods that fill copies of nodes: drawn from the mix, the same for every node of a card model.

Each class gets its exact part of all draws, in shuffled order. The order is the same for every card
model, and the seed is fixed: two nodes, or one node before and after a pod, are compared with the
same random numbers, and the same mix always gives the same answer. Drawn apart, a model would look
better than another by luck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Philox  # NumPy imports it late, and that takes 15 ms
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI
from fracgpu.placement.policies.least_waste.mix import Demand, PodClass

SEQUENCES: Final = 32
SLOT_BITS: Final = 5
NO_ROOM: Final = 1 << 15
"""The code of a share that no card has room for."""

# A sequence requests this many cards by the mix's mean, nearly four times the cards of an ordinary
# node with eight, so that the node is full before the sequence ends.
_CARDS_DRAWN: Final = 30
_FEWEST_PODS, _MOST_PODS = 24, 128
_SEED: Final = 20_261_120
_MOST_CPU: Final = np.iinfo(np.int32).max
_MOST_CARDS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Pairs of pods for the nodes of one card model: [step, pod of the pair, sequence].

    Attributes:
        cpu: thousandths of a core that the pod requests.
        share: what it takes of its card, as a code (thousandths << SLOT_BITS); 0 for a pod that
            takes only CPU, and NO_ROOM for one that never runs, or on several cards.
        several: [step, sequence] how many cards the pod on several cards takes, if the pair has
            one.
        several_cpu: [step, sequence] what that pod requests of CPU.
    """

    cpu: NDArray[np.int32]
    share: NDArray[np.uint16]
    several: NDArray[np.int32]
    several_cpu: NDArray[np.int32]


def steps_of(classes: Sequence[PodClass]) -> int:
    """Return how many pairs of pods a sequence has."""
    requested = sum(one.frequency_ratio * one.demand.gpu_milli for one in classes)
    cards = requested / WHOLE_CARD_MILLI
    return min(max(round(_CARDS_DRAWN / cards), _FEWEST_PODS), _MOST_PODS) if cards else 0


def draw(classes: Sequence[PodClass], model: str, steps: int) -> Draws:
    """Draw the pods for the nodes of one card model."""
    accepted = sorted((one for one in classes if one.demand.accepts(model)), key=_size)
    if not accepted:  # then a pod that takes nothing
        accepted = [PodClass(demand=Demand(), frequency_ratio=1.0)]
    demands = [one.demand for one in accepted]
    shape = steps, 2, SEQUENCES
    size = steps * 2 * SEQUENCES
    ends = np.cumsum([one.frequency_ratio for one in accepted])
    drawn = np.searchsorted(ends / ends[-1], (np.arange(size) + 0.5) / size)
    # A bit generator's raw stream stays the same in every release of NumPy.
    shuffled = np.argsort(Philox(_SEED).random_raw(size), kind="stable")
    drawn = np.minimum(drawn, len(accepted) - 1)[shuffled].reshape(shape)
    cpu = np.array([min(demand.cpu_milli, _MOST_CPU) for demand in demands], np.int32)[drawn]
    codes = [
        demand.share_milli << SLOT_BITS if demand.cards <= 1 else NO_ROOM for demand in demands
    ]
    share = np.array(codes, np.uint16)[drawn]
    # A pod without cards leaves the same remainders on any node: it runs only as the first.
    share[:, 1][share[:, 1] == 0] = NO_ROOM
    cards = np.array(
        [min(demand.cards, _MOST_CARDS) if demand.cards > 1 else 0 for demand in demands], np.int32
    )[drawn]
    first = cards[:, 0] > 0
    return Draws(
        cpu=cpu,
        share=share,
        several=np.where(first, cards[:, 0], cards[:, 1]),
        several_cpu=np.where(first, cpu[:, 0], cpu[:, 1]),
    )


def _size(one: PodClass) -> tuple[int, int, int]:
    return one.demand.cards, one.demand.share_milli, one.demand.cpu_milli
