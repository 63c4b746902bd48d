"""Finds the states that have to be evaluated in C: ``evaluate.c``, in `compiled_fill`'s library.

The answers are those of `card_states` and `unknown_options`, to the bit. What evaluates lies in
between: `Questions.ask` lists the entries, and `Questions.answer` is given their values.
"""

import ctypes
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library
from fracgpu.placement.policies.least_waste.fill.compiled_options import (
    CompiledOptions,
    NodeArrays,
    OptionArrays,
    PriceArrays,
    address_of,
)
from fracgpu.placement.policies.least_waste.fill.compiled_states import Names, Waste

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
if library is not None:
    for _name, _arguments in {
        "fracgpu_unknown": [*[_POINTER] * 4, *[_NUMBER] * 2, *[_POINTER] * 3],
        "fracgpu_pairs": [*[_POINTER] * 6, _NUMBER, _POINTER, _NUMBER, _POINTER],
        "fracgpu_missing": [_POINTER, _POINTER, _NUMBER, _NUMBER],
        "fracgpu_know": [*[_POINTER] * 6, _NUMBER, _POINTER, _NUMBER, _POINTER],
    }.items():
        getattr(library, _name).argtypes = _arguments
        getattr(library, _name).restype = _NUMBER
    library.fracgpu_answer.argtypes = [_POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER]

# The arrays for so many states are kept for the next question.
_KEPT_ROOM: Final = 2_048
_FEWEST_ENTRIES: Final = 48  # few states and their neighbours, as evaluate.c lists them


class _Question(ctypes.Structure):
    """struct question of evaluate.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, _POINTER) for name in ("names", "cpu_milli", "model", "levels")),
        *((name, _POINTER) for name in ("low", "high", "found")),
        *((name, _NUMBER) for name in ("room", "width")),
        *((name, _POINTER) for name in ("entries", "entry_cpu", "entry_model", "entry_levels")),
        ("most", _NUMBER),
        *((name, _POINTER) for name in ("places", "place_values")),
        ("place_bits", _NUMBER),
    ]


class Question:
    """States, and what has to be evaluated of them; evaluate.c works on these arrays.

    Attributes:
        room: for how many states.
        width: cards of a node.
        names, cpu_milli, model, levels: [state] what is asked.
        found: [state] the answer.
        lost: [state] what is lost of the cards, for whoever asks for pairs of states.
        entry_cpu, entry_model, entry_levels: [entry] what has to be evaluated.
    """

    def __init__(self, room: int, width: int) -> None:
        self.room, self.width = room, width
        most = max(_FEWEST_ENTRIES, 2 * room)
        bits = (2 * most - 1).bit_length()
        self.names: Names = np.empty(room, np.uint64)
        self.cpu_milli: IntArray = np.empty(room, np.int64)
        self.model: IntArray = np.empty(room, np.int64)
        self.levels: Levels = np.empty((room, width), np.int16)
        low, high, self.found, self.lost = np.empty((4, room), np.float32)
        entries = np.empty(most, np.uint64)
        self.entry_cpu: NDArray[np.int32] = np.empty(most, np.int32)
        self.entry_model: IntArray = np.empty(most, np.int64)
        self.entry_levels: Levels = np.empty((most, width), np.int16)
        places, values = np.zeros(1 << bits, np.uint64), np.empty(1 << bits, np.float32)
        asked = self.names, self.cpu_milli, self.model, self.levels, low, high, self.found
        listed = entries, self.entry_cpu, self.entry_model, self.entry_levels
        self._arrays = *asked, *listed, places, values  # what the addresses point to
        self.lost_address = self.lost.ctypes.data
        self._struct = _Question(
            *(array.ctypes.data for array in asked),
            *(room, width),
            *(array.ctypes.data for array in listed),
            most,
            *(places.ctypes.data, values.ctypes.data, bits),
        )
        self.pointer = ctypes.byref(self._struct)


class Pairs(msgspec.Struct, frozen=True):
    """Nodes as they are and after an option, in a question from the pair *start* on."""

    row: IntArray
    option: IntArray
    question: Question
    start: int

    def arguments(self) -> tuple[object, ...]:
        """Return what evaluate.c takes of them."""
        assert len(self.row) == len(self.option)
        return (
            *(address_of(self.row), address_of(self.option), len(self.row)),
            *(self.question.pointer, self.start, self.question.lost_address),
        )


class CompiledEvaluation:
    """Asks for states of one `CardStates`, and keeps what is answered."""

    def __init__(self, options: CompiledOptions) -> None:
        self._options = options
        self._states = options.states
        self._kept = Question(0, 1)
        self._unknown = np.empty((3, _KEPT_ROOM), np.int64)

    def question(self, room: int, width: int) -> Question:
        """Return arrays for at least *room* states; they are used again for the next question."""
        kept = self._kept
        if kept.width == width and kept.room >= room:
            return kept
        found = Question(max(room, 64), width)
        if room <= _KEPT_ROOM:
            self._kept = found
        return found

    def unknown(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        standing: NodeArrays,
        rows: IntArray,
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return what `PlacementOptions.unknown` does, not sorted, and what to sort by."""
        assert library is not None
        into = self._unknown
        while True:
            count: int = library.fracgpu_unknown(
                self._options.nodes_of(nodes),
                options.pointer,
                standing.pointer,
                *(address_of(rows), len(rows)),
                *(into.shape[1], *(array.ctypes.data for array in into)),
            )
            assert count >= 0, "a row is not there"
            if count <= into.shape[1]:
                row, option, left = into[:, :count].copy()
                return row, option, left
            into = np.empty((3, count), np.int64)

    def ask_pairs(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        standing: NodeArrays,
        pairs: Pairs,
    ) -> None:
        """Ask for each node as it is and after its option, in turn."""
        assert library is not None
        found = library.fracgpu_pairs(
            self._options.nodes_of(nodes),
            *(self._states, options.pointer, standing.pointer),
            *pairs.arguments(),
        )
        assert found == len(pairs.row), "a row or an option is not there"

    def missing(self, question: Question, count: int, *, most: int) -> int:
        """Look up *count* states; return how many entries have to be evaluated, *most* or fewer."""
        assert library is not None
        found: int = library.fracgpu_missing(self._states, question.pointer, count, most)
        assert found >= 0, "a model or a level is not there"
        return found

    def answer(self, question: Question, count: int, values: Waste) -> None:
        """Keep the values of the entries that were missing; write the waste of *count* states."""
        assert library is not None
        assert count <= question.room
        assert len(values) <= len(question.entry_cpu)
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
        library.fracgpu_answer(
            self._states, question.pointer, count, values.ctypes.data, len(values)
        )

    def know(
        self,
        nodes: FreeResourceTable,
        options: OptionArrays,
        prices: PriceArrays,
        standing: NodeArrays,
        pairs: Pairs,
    ) -> int:
        """Set what was answered to `ask_pairs`; return how many states are not known still."""
        assert library is not None
        found: int = library.fracgpu_know(
            self._options.nodes_of(nodes),
            *(options.pointer, prices.pointer, standing.pointer),
            *pairs.arguments(),
        )
        assert found >= 0, "a row or an option is not there"
        return found
