"""Finds the options of pods and their costs in C: ``options.c``, in `compiled_fill`'s library.

The answers are those of `options` and `policy`, to the bit. One call goes over all nodes that are
asked for, where NumPy makes a dozen passes over arrays of all their options.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import (
    MAX_CARDS,
    WHOLE_CARD_MILLI,
    FreeResourceTable,
    IntArray,
    Levels,
)
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library
from fracgpu.placement.policies.least_waste.fill.compiled_states import WAYS, Names, Waste

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_LEVELS: Final = WHOLE_CARD_MILLI + 1
if library is not None:
    for _name, _arguments in {
        "fracgpu_options": [*[_POINTER] * 4, _NUMBER],
        "fracgpu_unknown": [*[_POINTER] * 4, _NUMBER, *[_POINTER] * 3],
        "fracgpu_after": [*[_POINTER] * 5, _NUMBER, *[_POINTER] * 4],
        "fracgpu_costs": [*[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, *[_POINTER] * 3],
    }.items():
        getattr(library, _name).argtypes = _arguments
        getattr(library, _name).restype = _NUMBER


def _fields(pointers: str, numbers: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [(name, _POINTER) for name in pointers.split()]
    return fields + [(name, _NUMBER) for name in numbers.split()]


class _Nodes(ctypes.Structure):
    """struct nodes of options.c."""

    _fields_: ClassVar = _fields("model cpu_milli changed levels", "rows width")


class _States(ctypes.Structure):
    """struct states of options.c."""

    _fields_: ClassVar = [
        *_fields("names values", "bits"),
        *_fields("card_names lost_milli model_names", ""),
    ]


class _Options(ctypes.Structure):
    """struct options of options.c."""

    _fields_: ClassVar = [
        *_fields("", "cards share_milli cpu_milli"),
        *_fields("seen idle_cards card waste_milli", "rows each"),
    ]


class _Prices(ctypes.Structure):
    """struct prices of options.c."""

    _fields_: ClassVar = [
        *_fields("worth cpu_steps", "steps"),
        *_fields("by_model cost_now idle_milli", ""),
        ("idle", ctypes.c_double),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTables:
    """The tables of `CardStates`: names and values of entries, [set, way], and names of cards."""

    names: Names
    values: Waste
    bits: int
    card_names: Names
    lost_milli: NDArray[np.int16]
    model_names: Names


class OptionArrays:
    """The arrays of `PlacementOptions` as options.c takes them; they may not be replaced."""

    def __init__(
        self,
        request: tuple[int, int, int],
        *,
        seen: IntArray,
        idle_cards: NDArray[np.int8],
        card: NDArray[np.int8],
        waste_milli: Waste,
    ) -> None:
        arrays = self.arrays = seen, idle_cards, card, waste_milli
        self.rows, self.each = idle_cards.shape
        assert len(seen) == self.rows
        assert idle_cards.shape == card.shape == waste_milli.shape
        assert all(array.flags.c_contiguous for array in arrays)
        cards, share_milli, cpu_milli = request
        self.struct = _Options(
            *(cards, share_milli, cpu_milli),
            *(array.ctypes.data for array in arrays),
            *(self.rows, self.each),
        )


class PriceArrays:
    """What counts beside the waste, as options.c takes it; the arrays may not be replaced.

    Args:
        worth: [model, CPU steps reached, idle cards]
        cpu_steps: ascending.
        by_model: [model]
        cost_now: [row]
        idle_milli: [row]
        idle: the weight of *idle_milli*.
    """

    def __init__(
        self,
        *,
        worth: NDArray[np.float64],
        cpu_steps: IntArray,
        by_model: NDArray[np.float64],
        cost_now: NDArray[np.float64],
        idle_milli: IntArray,
        idle: float,
    ) -> None:
        arrays = self.arrays = worth, cpu_steps, by_model, cost_now, idle_milli
        self.rows = len(cost_now)
        assert worth.shape == (len(by_model), len(cpu_steps) + 1, MAX_CARDS + 1)
        assert len(idle_milli) == self.rows
        assert all(array.flags.c_contiguous and array.itemsize == 8 for array in arrays)  # noqa: PLR2004
        self.struct = _Prices(
            *(worth.ctypes.data, cpu_steps.ctypes.data, len(cpu_steps)),
            *(by_model.ctypes.data, cost_now.ctypes.data, idle_milli.ctypes.data),
            idle,
        )


def _address(rows: IntArray) -> int:
    """Return where *rows* begin in memory; options.c takes 64 bits for each, without gaps."""
    assert rows.dtype == np.int64
    assert rows.flags.c_contiguous
    return rows.ctypes.data


class CompiledOptions:
    """Works on the arrays of `PlacementOptions`, with the tables of one `CardStates`."""

    def __init__(self, tables: StateTables) -> None:
        assert library is not None
        assert tables.names.shape == tables.values.shape == (1 << tables.bits, WAYS)
        assert tables.card_names.shape == tables.lost_milli.shape
        assert tables.card_names.shape[1] == _LEVELS
        self._models = len(tables.card_names)
        assert len(tables.model_names) >= self._models
        arrays = self._arrays = (
            *(tables.names, tables.values),
            *(tables.card_names, tables.lost_milli, tables.model_names),
        )
        assert all(array.flags.c_contiguous for array in arrays)
        names, values, *cards = (array.ctypes.data for array in arrays)
        self._states = _States(names, values, tables.bits, *cards)
        self._nodes = _Nodes()
        self._of: IntArray | None = None  # the array of the table of nodes that *_nodes* is of

    def _nodes_of(self, nodes: FreeResourceTable) -> _Nodes:
        """Return *nodes* as options.c takes them; its arrays are replaced when it grows."""
        if self._of is not nodes.model:
            assert nodes.levels.shape == (len(nodes.model), MAX_CARDS)
            arrays = nodes.model, nodes.cpu_milli, nodes.changed, nodes.levels
            self._nodes = _Nodes(*(array.ctypes.data for array in arrays), 0, 0)
            self._of = nodes.model
        assert len(nodes.models) <= self._models
        self._nodes.rows, self._nodes.width = nodes.size, nodes.width
        return self._nodes

    def update(self, nodes: FreeResourceTable, options: OptionArrays, rows: IntArray) -> None:
        """Do what `PlacementOptions.update` does."""
        assert library is not None
        assert options.each in (1, nodes.width)
        found = library.fracgpu_options(
            ctypes.byref(self._nodes_of(nodes)),
            ctypes.byref(self._states),
            ctypes.byref(options.struct),
            _address(rows),
            len(rows),
        )
        assert found >= 0, "a row is not there"

    def unknown(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        rows: IntArray,
        also: NDArray[np.bool_],
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return what `PlacementOptions.unknown` does, not sorted, and what to sort by."""
        assert library is not None
        assert len(rows) == len(also)
        also = np.ascontiguousarray(also)
        question = (
            ctypes.byref(self._nodes_of(nodes)),
            ctypes.byref(options.struct),
            *(_address(rows), also.ctypes.data, len(rows)),
        )
        # Mostly there are none, and an array for all there could be is larger than any other here.
        count = library.fracgpu_unknown(*question, None, None, None)
        assert count >= 0, "a row is not there"
        row, option, left = np.empty((3, count), np.int64)
        if count:
            library.fracgpu_unknown(
                *question, *(array.ctypes.data for array in (row, option, left))
            )
        return row, option, left

    def after(
        self, nodes: FreeResourceTable, options: OptionArrays, row: IntArray, option: IntArray
    ) -> tuple[Names, Waste, IntArray, Levels]:
        """Return what `PlacementOptions.states_of` does."""
        assert library is not None
        row, option = np.ascontiguousarray(row), np.ascontiguousarray(option)
        count = len(row)
        assert len(option) == count
        names, lost = np.empty(count, np.uint64), np.empty(count, np.float32)
        cpu_milli, levels = np.empty(count, np.int64), np.empty((count, nodes.width), np.int16)
        found = library.fracgpu_after(
            ctypes.byref(self._nodes_of(nodes)),
            ctypes.byref(self._states),
            ctypes.byref(options.struct),
            *(_address(row), _address(option), count),
            *(array.ctypes.data for array in (names, lost, cpu_milli, levels)),
        )
        assert found == count, "a row or an option is not there"
        return names, lost, cpu_milli, levels

    def costs(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        prices: PriceArrays,
        gpu_milli: int,
        rows: IntArray,
    ) -> tuple[IntArray, NDArray[np.float64], IntArray]:
        """Return the rows with an option, and the cost and the card of the best of each."""
        assert library is not None
        assert prices.rows >= nodes.size
        row, card = np.empty((2, len(rows)), np.int64)
        cost = np.empty(len(rows))
        found = library.fracgpu_costs(
            ctypes.byref(self._nodes_of(nodes)),
            ctypes.byref(options.struct),
            ctypes.byref(prices.struct),
            gpu_milli,
            *(_address(rows), len(rows)),
            *(row.ctypes.data, cost.ctypes.data, card.ctypes.data),
        )
        assert found >= 0, "a row is not there"
        return row[:found], cost[:found], card[:found]
