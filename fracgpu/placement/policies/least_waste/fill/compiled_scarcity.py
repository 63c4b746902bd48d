"""Prices whole idle cards in C: ``scarcity.c``, in the library of `compiled_fill`.

The answers are those of `fracgpu.placement.policies.least_waste.scarcity`, to the bit.
"""

import ctypes
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, Flags, IntArray
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
if library is not None:
    library.fracgpu_scarcity.argtypes = [*[_POINTER] * 4, _NUMBER]
    library.fracgpu_scarcity.restype = _NUMBER


class _Scarcity(ctypes.Structure):
    """struct scarcity of scarcity.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, _POINTER) for name in ("demand", "need_step", "need_cards", "accepts")),
        *((name, _POINTER) for name in ("cpu_steps", "usable", "worth")),
        *((name, _NUMBER) for name in ("classes", "models", "steps")),
        *((name, ctypes.c_double) for name in ("limit", "weight")),
    ]


class CompiledScarcity:
    """Writes the prices of one `Scarcity`, of which it is given the arrays.

    Args:
        demand: [class]
        need_step: [class]
        need_cards: [class]
        accepts: [class, model]
        cpu_steps: ascending.
        worth: [model, CPU steps reached, idle cards]; what is written.
        limit: of the premium, in cards.
        weight: of the price of one card, in thousandths.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each array
        self,
        demand: NDArray[np.float64],
        *,
        need_step: IntArray,
        need_cards: IntArray,
        accepts: Flags,
        cpu_steps: IntArray,
        worth: NDArray[np.float64],
        limit: float,
        weight: float,
    ) -> None:
        classes, models = accepts.shape
        usable = np.zeros_like(worth)
        arrays = self._arrays = (
            *(demand, need_step, need_cards, accepts),
            *(cpu_steps, usable, worth),
        )
        # The library trusts these.
        assert [array.itemsize for array in arrays] == [8, 8, 8, 1, 8, 8, 8]
        assert all(array.flags.c_contiguous for array in arrays)
        assert len(demand) == len(need_step) == len(need_cards) == classes
        assert worth.shape == (models, len(cpu_steps) + 1, MAX_CARDS + 1)
        self._struct = _Scarcity(
            *(array.ctypes.data for array in arrays),
            *(classes, models, len(cpu_steps), limit, weight),
        )

    def refresh(self, *, model: IntArray, cpu_milli: IntArray, idle_cards: IntArray) -> None:
        """Do what `Scarcity.refresh` does."""
        assert library is not None
        arrays = model, cpu_milli, idle_cards
        assert all(array.dtype == np.int64 and array.flags.c_contiguous for array in arrays)
        assert len(model) == len(cpu_milli) == len(idle_cards)
        found = library.fracgpu_scarcity(
            ctypes.byref(self._struct), *(array.ctypes.data for array in arrays), len(model)
        )
        assert found == 0, "a node or a class is out of range"
