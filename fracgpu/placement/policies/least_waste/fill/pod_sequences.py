"""The pods that fill nodes, drawn, in the form that a fill reads: arrays of integers."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI

SEQUENCES: Final = 32

# In a fill a card is one uint16 code: its free thousandths times SLOTS plus its position among the
# node's cards. No two cards of a node have equal codes, so the smallest code with room is one card,
# the tightest.
# The largest code is 1000 * 32 + 31 = 32,031, below 2**15: bit 15 is free to mark "no room".
SLOT_BITS: Final = 5

SLOTS: Final = 1 << SLOT_BITS

WHOLE: Final = WHOLE_CARD_MILLI * SLOTS

NO_ROOM: Final = 2**15  # above every code; a code less this wraps round to this or more


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSequences:
    """Pairs of pods by step, card model and sequence.

    Attributes:
        cpu: [step, model, pod of the pair, sequence] thousandths of a core that the pod requests.
        share: [step, model, pod of the pair, sequence] what the pod takes of its card, as a code
            (thousandths times SLOTS); 0 for a pod that takes only CPU, NO_ROOM for a pod on several
            cards, which is placed apart.
        several: [step, model, sequence] cards of the pod on several cards, if the pair has one.
        several_cpu: [step, model, sequence] what that pod requests of CPU.
    """

    cpu: NDArray[np.int32]
    share: NDArray[np.uint16]
    several: NDArray[np.int16]
    several_cpu: NDArray[np.int32]
