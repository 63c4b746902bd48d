"""Finds the options of pods and their costs in C: ``options.c``, in `compiled_fill`'s library.

The answers are those of `options` and `policy`, to the bit. One call goes over all nodes that are
asked for, where NumPy makes a dozen passes over arrays of all their options.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import MAX_CARDS, WHOLE_CARD_MILLI, Demand, Flags, IntArray
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library
from fracgpu.placement.policies.least_waste.fill.compiled_states import WAYS, Names, Waste

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_LEVELS: Final = WHOLE_CARD_MILLI + 1
if library is not None:
    for _name, _arguments in {
        "fracgpu_options": [*[_POINTER] * 4, _NUMBER],
        "fracgpu_nodes": [*[_POINTER] * 3, _NUMBER],
        "fracgpu_node_costs": [*[_POINTER] * 3, _NUMBER],
        "fracgpu_rank": [
            *[_POINTER] * 4,
            *[_NUMBER] * 2,
            *[_POINTER] * 2,
            _NUMBER,
            *[_POINTER] * 5,
        ],
        "fracgpu_costs": [*[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, *[_POINTER] * 3],
    }.items():
        getattr(library, _name).argtypes = _arguments
        getattr(library, _name).restype = _NUMBER


def _fields(pointers: str, numbers: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [(name, _POINTER) for name in pointers.split()]
    return fields + [(name, _NUMBER) for name in numbers.split()]


class _Nodes(ctypes.Structure):
    """struct nodes of options.c."""

    _fields_: ClassVar = _fields("model cpu_milli memory_mib changed levels", "rows width")


class _States(ctypes.Structure):
    """struct states of options.c."""

    _fields_: ClassVar = [
        *_fields("names values next", "bits"),
        *_fields("card_names lost_milli model_names", "models"),
    ]


class _Options(ctypes.Structure):
    """struct options of options.c."""

    _fields_: ClassVar = [
        *_fields("", "cards share_milli cpu_milli"),
        *_fields("seen asked idle_cards card waste_milli", "rows each"),
    ]


class _Prices(ctypes.Structure):
    """struct prices of options.c."""

    _fields_: ClassVar = [
        *_fields("worth cpu_steps", "steps"),
        *_fields("by_model cost_now idle_milli", ""),
        ("idle", ctypes.c_double),
    ]


class _Standing(ctypes.Structure):
    """struct standing of options.c."""

    _fields_: ClassVar = _fields("name lost waste_milli idle_cards idle_milli cost", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTables:
    """The tables of `CardStates`: names and values of entries, [set, way], and names of cards.

    *next_way* is [set].
    """

    names: Names
    values: Waste
    next_way: NDArray[np.uint8]
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
        asked: Flags,
        idle_cards: NDArray[np.int8],
        card: NDArray[np.int8],
        waste_milli: Waste,
    ) -> None:
        arrays = self.arrays = seen, asked, idle_cards, card, waste_milli
        self.models = len(asked)
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
        self.pointer = ctypes.byref(self.struct)


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
        self.pointer = ctypes.byref(self.struct)


class NodeArrays:
    """The arrays of `NodeCosts` as options.c takes them, [row] each; they may not be replaced.

    Attributes:
        waste_milli: one of them.
    """

    def __init__(
        self,
        name: Names,
        lost: Waste,
        waste_milli: Waste,
        *,
        idle_cards: IntArray,
        idle_milli: IntArray,
        cost: NDArray[np.float64],
    ) -> None:
        arrays = self.arrays = name, lost, waste_milli, idle_cards, idle_milli, cost
        self.rows = len(name)
        self.waste_milli = waste_milli
        assert [array.itemsize for array in arrays] == [8, 4, 4, 8, 8, 8]
        assert all(array.shape == name.shape for array in arrays)
        assert all(array.flags.c_contiguous for array in arrays)
        self.struct = _Standing(*(array.ctypes.data for array in arrays), self.rows)
        self.pointer = ctypes.byref(self.struct)


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """What `CompiledOptions.rank` finds.

    Attributes:
        rows: the candidates, ascending.
        more_models: a node was among the rows of a model that was not asked for before.
        best: what `CompiledOptions.costs` returns of them; None if some option is not known.
    """

    rows: IntArray
    more_models: bool
    best: tuple[IntArray, NDArray[np.float64], IntArray] | None


def address_of(rows: IntArray) -> int:
    """Return where *rows* begin in memory; options.c takes 64 bits for each, without gaps."""
    assert rows.dtype == np.int64
    assert rows.flags.c_contiguous
    return rows.ctypes.data


class CompiledOptions:
    """Works on the arrays of `PlacementOptions`, with the tables of one `CardStates`."""

    def __init__(self, tables: StateTables) -> None:
        assert library is not None
        assert tables.names.shape == tables.values.shape == (1 << tables.bits, WAYS)
        assert tables.next_way.shape == (1 << tables.bits,)
        assert tables.card_names.shape == tables.lost_milli.shape
        assert tables.card_names.shape[1] == _LEVELS
        self._models = len(tables.card_names)
        assert len(tables.model_names) >= self._models
        arrays = self._arrays = (
            *(tables.names, tables.values, tables.next_way),
            *(tables.card_names, tables.lost_milli, tables.model_names),
        )
        assert all(array.flags.c_contiguous for array in arrays)
        names, values, ways, *cards = (array.ctypes.data for array in arrays)
        self._struct = _States(names, values, ways, tables.bits, *cards, self._models)
        self.states = ctypes.byref(self._struct)
        self._nodes = _Nodes()
        self._nodes_pointer = ctypes.byref(self._nodes)
        self._told = np.zeros(2, np.int64)
        self._told_address = self._told.ctypes.data
        self._accepts, self._accepts_address = np.zeros(0, np.bool_), 0
        self._of: IntArray | None = None  # the array of the table of nodes that *_nodes* is of

    def nodes_of(self, nodes: FreeResourceTable) -> object:
        """Return a pointer to *nodes* as options.c takes them; its arrays change when it grows."""
        if self._of is not nodes.model:
            assert nodes.levels.shape == (len(nodes.model), MAX_CARDS)
            arrays = (
                *(nodes.model, nodes.cpu_milli, nodes.memory_mib, nodes.changed),
                nodes.levels,
            )
            self._nodes = _Nodes(*(array.ctypes.data for array in arrays), 0, 0)
            self._nodes_pointer = ctypes.byref(self._nodes)
            self._of = nodes.model
        assert len(nodes.models) <= self._models
        self._nodes.rows, self._nodes.width = nodes.size, nodes.width
        return self._nodes_pointer

    def update(self, nodes: FreeResourceTable, options: OptionArrays, rows: IntArray) -> None:
        """Do what `PlacementOptions.update` does."""
        assert library is not None
        assert options.each in (1, nodes.width)
        found = library.fracgpu_options(
            self.nodes_of(nodes),
            self.states,
            options.pointer,
            address_of(rows),
            len(rows),
        )
        assert found >= 0, "a row is not there"

    def update_nodes(self, nodes: FreeResourceTable, standing: NodeArrays, moment: int) -> None:
        """Find state and waste of the nodes that changed after *moment*, as `NodeCosts` does."""
        assert library is not None
        found = library.fracgpu_nodes(
            self.nodes_of(nodes),
            self.states,
            standing.pointer,
            moment,
        )
        assert found >= 0, "a row is not there"

    def price_nodes(
        self, nodes: FreeResourceTable, prices: PriceArrays, standing: NodeArrays, moment: int
    ) -> None:
        """Set the cost of the nodes that changed after *moment*, as `NodeCosts` does."""
        assert library is not None
        found = library.fracgpu_node_costs(
            self.nodes_of(nodes),
            prices.pointer,
            standing.pointer,
            moment,
        )
        assert found >= 0, "a row is not there"

    def rank(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        prices: PriceArrays,
        demand: Demand,
        among: IntArray,
    ) -> "Ranked":
        """Find the candidates *among* rows, which ascend, their options, and the best of each."""
        assert library is not None
        assert options.each in (1, nodes.width)
        assert options.models == len(nodes.models)
        assert prices.rows >= nodes.size
        accepts, count = nodes.accepted(demand), len(among)
        if accepts is not self._accepts:
            assert len(accepts) == len(nodes.models)
            self._accepts, self._accepts_address = accepts, accepts.ctypes.data
        # One array: asking each for its address takes as long as the call.
        into = np.empty((4, count), np.int64)
        address, step = into.ctypes.data, into.strides[0]
        found = library.fracgpu_rank(
            *(self.nodes_of(nodes), self.states, options.pointer, prices.pointer),
            *(demand.gpu_milli, demand.memory_mib, self._accepts_address),
            *(address_of(among), count),
            *(address, address + step, address + 2 * step, address + 3 * step),
            self._told_address,
        )
        assert found >= 0, "a row is not there, or rows do not ascend"
        known, marked = self._told.tolist()
        fitting, row, cost, card = into
        best = None
        if known >= 0:
            best = row[:known], cost.view(np.float64)[:known], card[:known]
        return Ranked(rows=fitting[:found], more_models=marked > 0, best=best)

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
            self.nodes_of(nodes),
            options.pointer,
            prices.pointer,
            gpu_milli,
            *(address_of(rows), len(rows)),
            *(row.ctypes.data, cost.ctypes.data, card.ctypes.data),
        )
        assert found >= 0, "a row is not there"
        return row[:found], cost[:found], card[:found]
