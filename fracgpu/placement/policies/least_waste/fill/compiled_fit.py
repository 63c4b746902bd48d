"""Finds the nodes on which a container fits in C: ``fit.c``, in the library of `compiled_fill`.

The answers are those of `fit_index`, to the bit, which takes 25 passes over small arrays.
"""

import ctypes
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import Flags, IntArray, NodeMatrix
from fracgpu.placement.policies.least_waste.fill.compiled_fill import library
from fracgpu.request.need import ContainerNeed

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_MOST_COLUMNS: Final = 127  # as fit.c has it
# Two numbers below this have a product of 64 bits.
_LARGE: Final = 2**31
if library is not None:
    library.fracgpu_fit.argtypes = [*[_POINTER] * 3, _NUMBER]
    library.fracgpu_fit.restype = _NUMBER


class _Matrix(ctypes.Structure):
    """struct matrix of fit.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, _POINTER) for name in ("node_state", "state", "avoided")),
        *((name, _POINTER) for name in ("free_mib", "capacity_mib", "free_cores")),
        *((name, _POINTER) for name in ("free_slots", "model", "changed")),
        *((name, _NUMBER) for name in ("rows", "width")),
    ]


class _Request(ctypes.Structure):
    """struct request of fit.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("allowed", _POINTER),
        *((name, _NUMBER) for name in ("models", "cards", "mib", "cores", "share_of", "parts")),
    ]


class _Result(ctypes.Structure):
    """struct result of fit.c."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, _POINTER) for name in ("verdict", "score", "avoided")),
        ("rows", _NUMBER),
    ]


def is_supported(container: ContainerNeed, matrix: NodeMatrix) -> bool:
    """Report whether compiled code can judge a container, by the tightest cards.

    It is so but on processors for which nothing is compiled, and for amounts that no card has.
    """
    share = container.share
    return (
        library is not None
        and matrix.width <= _MOST_COLUMNS
        and (share is None or max(share.numerator, share.denominator) < _LARGE)
    )


class Judgement:
    """What a pod's only container is judged by, and where that is written.

    Args:
        container: `is_supported` was true for it.
        allowed: [model] whether the pod accepts it.
        verdict: [row] of the matrix, like the following; as `FitResult` has them.
        score: by the tightest cards.
        avoided: whether one of these is avoided.
    """

    def __init__(
        self,
        container: ContainerNeed,
        allowed: Flags,
        verdict: IntArray,
        score: NDArray[np.float64],
        avoided: Flags,
    ) -> None:
        arrays = self._arrays = allowed, verdict, score, avoided  # what the addresses point to
        # The library trusts these.
        assert [array.dtype for array in arrays] == [np.bool_, np.int64, np.float64, np.bool_]
        assert len(verdict) == len(score) == len(avoided)
        assert all(array.flags.c_contiguous for array in arrays)
        share = container.share
        self._request = _Request(
            *(allowed.ctypes.data, len(allowed)),
            *(container.cards, container.mib, container.cores),
            *((0, 0) if share is None else (share.numerator, share.denominator)),
        )
        self._result = _Result(
            *(array.ctypes.data for array in arrays[1:]),
            len(verdict),
        )
        self.verdict = verdict
        self.pointers = ctypes.byref(self._request), ctypes.byref(self._result)


class CompiledFit:
    """Judges the rows of one matrix."""

    def __init__(self, matrix: NodeMatrix) -> None:
        self._matrix = matrix
        self._struct = _Matrix()
        self._of: IntArray | None = None  # the array of the matrix that *_struct* is of

    def _matrix_now(self) -> _Matrix:
        """Return the matrix as fit.c takes it; all of its arrays are replaced when it grows."""
        matrix = self._matrix
        if self._of is not matrix.free_mib:
            flags = matrix.node_state, matrix.state, matrix.avoided
            amounts = (
                *(matrix.free_mib, matrix.capacity_mib, matrix.free_cores),
                *(matrix.free_slots, matrix.model),
            )
            changed = matrix.changed
            assert all(array.itemsize == 1 for array in flags)
            assert all(array.dtype == np.int64 for array in (*amounts, changed))
            assert all(array.flags.c_contiguous for array in (*flags, *amounts, changed))
            assert all(array.shape == matrix.state.shape for array in (flags[2], *amounts))
            assert len(changed) == len(matrix.node_state) == len(matrix.state)
            self._struct = _Matrix(
                *(array.ctypes.data for array in (*flags, *amounts, changed)),
                *matrix.state.shape,
            )
            self._of = matrix.free_mib
        self._struct.rows = matrix.size
        return self._struct

    def judge(self, judgement: Judgement, moment: int) -> None:
        """Judge the rows that changed after *moment*, an earlier ``now`` of the matrix."""
        assert library is not None
        found = library.fracgpu_fit(ctypes.byref(self._matrix_now()), *judgement.pointers, moment)
        assert found == 0, "a row or a model is not there"
