"""The fill of nodes in C: ``fill.c``, as the build of the package has compiled it.

The answers are those of `numpy_fill`, to the bit, and come 15 to 200 times faster. The library
needs no other, so one file fits every Linux on the same kind of processor. On processors for which
none is compiled, or where it cannot be loaded, `CompiledFill.problem` says so.
"""

import ctypes
import platform
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import MAX_CARDS, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.pod_sequences import (
    NO_ROOM,
    SEQUENCES,
    WHOLE,
    PodSequences,
)

# struct several of fill.c
_SEVERAL: Final = np.dtype(
    [("step", np.int32), ("sequence", np.int32), ("cards", np.int32), ("cpu", np.int32)]
)
_FUNCTIONS: Final = (
    *("fracgpu_waste", "fracgpu_known", "fracgpu_names", "fracgpu_options"),
    *("fracgpu_costs", "fracgpu_nodes", "fracgpu_node_costs", "fracgpu_rank"),
    *("fracgpu_unknown", "fracgpu_pairs", "fracgpu_missing", "fracgpu_answer", "fracgpu_know"),
    "fracgpu_scarcity",
)
# The checksum of the sources that this module was written for; setup.py puts it into the library.
SOURCES: Final = 0x5E255839
_EVERY_BIT: Final = 0xFFFF
# Vectors of fill.c lie in memory at multiples of this many bytes.
_ALIGNED: Final = 64
assert SEQUENCES == MAX_CARDS == 32  # noqa: PLR2004 - as fill.c has them


class _Model(ctypes.Structure):
    """struct model of fill.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("cpu", "share", "on_cards", "least", "several")),
        *((name, ctypes.c_int64) for name in ("several_count", "steps")),
    ]


def load(path: str) -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library at *path*, or else why there is none."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    try:
        found = ctypes.CDLL(path)
        for name in _FUNCTIONS:
            getattr(found, name).restype = None
        checksum = found.fracgpu_sources
    except (OSError, AttributeError) as error:  # the latter from a library of another version
        return None, str(error)
    checksum.restype = ctypes.c_uint
    if checksum() != SOURCES:  # its functions may take other arguments, which ends the process
        return None, f"{path} was compiled from other sources; make setup compiles it again"
    found.fracgpu_waste.argtypes = [pointer, pointer, number, pointer, pointer, number, pointer]
    return found, None


# As an extension module would be, it is loaded when this module is imported.
library, _problem = load(f"{__file__.rpartition('/')[0]}/fill-{platform.machine()}.so")


class CompiledFill:
    """Fills nodes with the pods of *pods*, one node after the other.

    Attributes:
        problem: why there is no such fill on this machine; None if there is one.
        pairs_per_ms: how many pairs of pods are placed in a millisecond of processor time, by all
            sequences of a node of eight cards.
    """

    problem: ClassVar[str | None] = _problem
    pairs_per_ms: ClassVar[int] = 8_000

    def __init__(self, pods: PodSequences) -> None:
        assert library is not None, self.problem
        self._run = library.fracgpu_waste
        self._count = pods.cpu.shape[1]
        self._models = (_Model * self._count)()
        self._arrays: list[NDArray[np.generic]] = []  # what the pointers point to
        for model in range(self._count):
            self._models[model] = self._model(pods, model)

    def _model(self, pods: PodSequences, model: int) -> _Model:
        share = pods.share[:, model]
        several = np.zeros(np.count_nonzero(pods.several[:, model]), _SEVERAL)
        several["step"], several["sequence"] = step, sequence = np.nonzero(pods.several[:, model])
        several["cards"] = pods.several[step, model, sequence]
        several["cpu"] = pods.several_cpu[step, model, sequence]
        on_one = np.where((share > 0) & (share < NO_ROOM), share, NO_ROOM)
        on_one = on_one.min((1, 2), initial=NO_ROOM)
        on_one[step] = np.minimum(on_one[step], WHOLE)
        return _Model(
            *(
                self._pointer(array)
                for array in (
                    pods.cpu[:, model],
                    share,
                    np.where(share > 0, np.uint16(_EVERY_BIT), np.uint16(0)),
                    np.minimum.accumulate(on_one[::-1])[::-1].astype(np.uint16),
                    several,
                )
            ),
            len(several),
            len(pods.cpu),
        )

    def _pointer(self, array: NDArray[np.generic]) -> int:
        """Return the address of a copy of *array* that lives as long as this object."""
        room = np.zeros(array.nbytes + _ALIGNED, np.uint8)
        start = -room.ctypes.data % _ALIGNED
        room[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self._arrays.append(room)
        return room.ctypes.data + start

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> NDArray[np.float32]:
        """Return what `FillSequences.expected_waste_milli` does."""
        levels = np.ascontiguousarray(levels, np.int16)
        cpu_milli = np.ascontiguousarray(cpu_milli, np.int32)
        model = np.ascontiguousarray(model, np.int64)
        nodes, width = levels.shape
        # The library trusts these.
        assert len(cpu_milli) == len(model) == nodes
        assert width <= MAX_CARDS
        # A negative number is a large one without its sign.
        assert not nodes or np.maximum.reduce(model.view(np.uint64)) < self._count
        found = np.empty(nodes, np.float32)
        self._run(
            self._models,
            levels.ctypes.data,
            width,
            cpu_milli.ctypes.data,
            model.ctypes.data,
            nodes,
            found.ctypes.data,
        )
        return found
