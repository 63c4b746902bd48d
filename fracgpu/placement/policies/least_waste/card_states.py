"""The states that a node's cards can be in, each with the waste to expect at any free CPU.

Nodes go through the same few thousand states, since the order of cards does not matter, nor do full
cards or remainders too small to be used. So each state has a row; its expected waste is evaluated
once for each whole number of free cores, and interpolated linearly in between.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences

CPU_STEP_MILLI: Final = 1000
_TOP_CORES: Final = 256  # more free CPU than this is of no use to the cards of one node
_BRACKET: Final = np.arange(2)  # the two steps to interpolate between
_NEIGHBOURS: Final = np.arange(-2, 4)  # and two more on either side
_FEW: Final = 8  # up to this many states, evaluating neighbours as well costs hardly more
_BATCH: Final = 64  # keeps an evaluation inside the processor's cache
MAX_STATES: Final = 32_768  # about 36 MB, at 258 float32 and 33 int16 a state


class CardStates:
    """Assigns a row to each state, and caches the expected waste.

    The arrays, all with one row for each state, grow by doubling:

    - ``_model`` [state]: index of the card model;
    - ``_levels`` [state, card]: free thousandths in descending order, lost remainders as 0;
    - ``_waste`` [state, whole free cores]: expected idle thousandths; NaN until evaluated.

    Args:
        sequences: the pods to fill nodes with.

    Attributes:
        idle_cards: [state] how many whole cards are free.
        evaluated: how many pairs of state and CPU have been evaluated.
    """

    def __init__(self, sequences: FillSequences) -> None:
        self._sequences = sequences
        self._rows: dict[bytes, int] = {}
        self._model = np.zeros(256, np.int16)
        self._levels = np.zeros((256, MAX_CARDS), np.int16)
        self._waste = np.full((256, _TOP_CORES + 2), np.nan, np.float32)
        self.idle_cards = np.zeros(256, np.int64)
        self.evaluated = 0

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, model: IntArray, levels: Levels) -> tuple[IntArray, NDArray[np.float32]]:
        """Return each node's state, and the thousandths of its cards that are lost in remainders.

        Args:
            model: [node] index of the card model.
            levels: [node, card] free thousandths.
        """
        lost = levels <= self._sequences.lost_milli[model][:, None]
        keys = np.zeros((len(levels), 1 + MAX_CARDS), np.int16)
        keys[:, 0] = model
        # Descending, so that nodes with equal live cards have equal keys in any order of cards.
        keys[:, 1 : 1 + levels.shape[1]] = -np.sort(-np.where(lost, np.int16(0), levels), axis=1)
        # Each key, 33 int16, as one bytes object: a hashable name.
        names = keys.view(f"V{keys.itemsize * keys.shape[1]}").ravel().tolist()
        known = self._rows
        for at, name in enumerate(names):
            if name not in known:
                self._add(name, keys[at])
        found = np.fromiter((known[name] for name in names), np.int64, len(names))
        return found, np.where(lost, levels, np.int16(0)).sum(1, dtype=np.float32)

    def waste_milli(self, rows: IntArray, cpu_milli: IntArray) -> NDArray[np.float32]:
        """Return the thousandths of cards expected to stay idle, [node].

        Args:
            rows: [node] the state, as `rows` returned it.
            cpu_milli: [node] free thousandths of a core, 0 or more.
        """
        step = np.minimum(cpu_milli // CPU_STEP_MILLI, _TOP_CORES)
        part = np.minimum(cpu_milli - step * CPU_STEP_MILLI, CPU_STEP_MILLI).astype(np.float32)
        part /= CPU_STEP_MILLI
        table = self._waste.ravel()  # a view: one index for state and step is faster than two
        at = rows * self._waste.shape[1] + step
        low, high = table[at], table[at + 1]
        unknown = np.isnan(low + high)
        if unknown.any():
            self._evaluate(rows[unknown], step[unknown])
            low, high = table[at], table[at + 1]
        expected: NDArray[np.float32] = low + (high - low) * part
        return expected

    def _evaluate(self, rows: IntArray, step: IntArray) -> None:
        # A state asked for at some CPU is soon asked for at a little more or less, and evaluating
        # several steps at once costs hardly more than one. With many states it does cost more.
        table = self._waste.ravel()
        near = _NEIGHBOURS if len(rows) <= _FEW else _BRACKET
        near = np.clip(step + near[:, None], 0, _TOP_CORES + 1)
        places = np.unique(rows * self._waste.shape[1] + near)
        places = places[np.isnan(table[places])]
        self.evaluated += len(places)
        for start in range(0, len(places), _BATCH):
            some = places[start : start + _BATCH]
            row, at = np.divmod(some, self._waste.shape[1])
            table[some] = self._sequences.expected_waste_milli(
                self._levels[row],
                (at * CPU_STEP_MILLI).astype(np.int32),
                self._model[row].astype(np.int64),
            )

    def _add(self, name: bytes, key: Levels) -> None:
        row = len(self._rows)
        if row == len(self._model):
            self._grow()
        self._rows[name] = row
        self._model[row] = key[0]
        self._levels[row] = key[1:]
        self.idle_cards[row] = int((key[1:] == WHOLE_CARD_MILLI).sum())

    def _grow(self) -> None:
        self._model = np.concatenate((self._model, np.zeros_like(self._model)))
        self._levels = np.concatenate((self._levels, np.zeros_like(self._levels)))
        self._waste = np.concatenate((self._waste, np.full_like(self._waste, np.nan)))
        self.idle_cards = np.concatenate((self.idle_cards, np.zeros_like(self.idle_cards)))
