"""Looks up what is known of nodes' states in C: ``states.c``, in the library of `compiled_fill`.

The answers are those of `card_states`, to the bit.
"""

import ctypes
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library

Names = NDArray[np.uint64]
Waste = NDArray[np.float32]

WAYS: Final = 4  # entries of a set, as states.c has it
_LEVELS: Final = WHOLE_CARD_MILLI + 1

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
if library is not None:
    library.fracgpu_known.argtypes = [*[_POINTER] * 2, _NUMBER, *[_POINTER] * 2, _NUMBER, _POINTER]
    library.fracgpu_names.argtypes = [*[_POINTER] * 5, _NUMBER, _NUMBER, *[_POINTER] * 2]


class CompiledNames:
    """Names states by the tables of `CardStates`, which may not change.

    Args:
        card_names: [model, level]
        lost_milli: [model, level]
        model_names: [model]
    """

    def __init__(
        self, card_names: Names, lost_milli: NDArray[np.int16], model_names: Names
    ) -> None:
        assert library is not None
        self._run = library.fracgpu_names
        self._tables = tuple(
            np.ascontiguousarray(table) for table in (card_names, lost_milli, model_names)
        )
        assert card_names.shape == lost_milli.shape == (len(card_names), _LEVELS)
        assert len(model_names) >= len(card_names)
        self._addresses = [table.ctypes.data for table in self._tables]

    def names(self, model: IntArray, levels: Levels) -> tuple[Names, Waste]:
        """Return what `CardStates.names` does."""
        model = np.ascontiguousarray(model, np.int64)
        levels = np.ascontiguousarray(levels, np.int16)
        nodes, width = levels.shape
        # The library trusts these; a negative number is a large one without its sign.
        assert len(model) == nodes
        assert not levels.size or levels.view(np.uint16).max() < _LEVELS
        assert not nodes or model.view(np.uint64).max() < len(self._tables[0])
        found, lost = np.empty(nodes, np.uint64), np.empty(nodes, np.float32)
        self._run(
            *self._addresses,
            *(model.ctypes.data, levels.ctypes.data, nodes, width),
            *(found.ctypes.data, lost.ctypes.data),
        )
        return found, lost


class CompiledTable:
    """The table of `CardStates`: the names of entries and their values, both [set, way].

    Args:
        names: of the entries.
        values: of the entries.
        bits: how many bits the number of a set has.
    """

    def __init__(self, names: Names, values: Waste, *, bits: int) -> None:
        assert library is not None
        self._known = library.fracgpu_known
        assert names.shape == values.shape == (1 << bits, WAYS)
        assert names.flags.c_contiguous
        assert values.flags.c_contiguous
        self._arrays = names, values  # what the addresses point to
        self._table = names.ctypes.data, values.ctypes.data, bits

    def waste_milli(self, names: Names, cpu_milli: IntArray) -> Waste:
        """Return what `CardStates.waste_milli` does."""
        names = np.ascontiguousarray(names, np.uint64)
        cpu_milli = np.ascontiguousarray(cpu_milli, np.int64)
        assert len(names) == len(cpu_milli)
        found = np.empty(len(names), np.float32)
        self._known(
            *self._table, names.ctypes.data, cpu_milli.ctypes.data, len(names), found.ctypes.data
        )
        return found
