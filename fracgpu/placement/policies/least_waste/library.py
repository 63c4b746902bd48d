"""The door to ``least_waste.c``, as the build of the package has compiled it; loaded with ctypes.

The library needs no other, so one file fits every Linux on the same kind of processor. Where there
is none, or it cannot be loaded, `Library.problem` says why.
"""

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from zlib import crc32

_POINTER, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Model(ctypes.Structure):
    """A struct of least_waste.c, like those that follow."""

    _fields_: ClassVar = _fields(_POINTER, "cpu share several several_cpu")


class Policy(ctypes.Structure):
    """The mix, and what was evaluated."""

    _fields_: ClassVar = [
        *_fields(_POINTER, "models classes accepts cpu_steps worth prices names values"),
        *_fields(_NUMBER, "model_count steps class_count cpu_step_count set_bits evaluated"),
        *_fields(_REAL, "fill fragment idle"),
    ]


class Nodes(ctypes.Structure):
    """The arrays of `PolicyNodes`."""

    _fields_: ClassVar = _fields(_POINTER, "changed cpu model size_mib levels")


class Request(ctypes.Structure):
    """What is asked, and the arrays to be brought up to date."""

    _fields_: ClassVar = [
        *_fields(_NUMBER, "mib cards cpu"),
        *_fields(_POINTER, "rows"),
        *_fields(_NUMBER, "count priced allowance"),
        *_fields(_POINTER, "closed cost taken changed_at priced_at"),
    ]


@dataclass(frozen=True, slots=True)
class Library:
    """The compiled code, or why there is none; one of the two is None.

    Attributes:
        rank: brings a `Request` up to date, given `Policy`, `Nodes` and that by reference; returns
            how many rows are not known.
        problem: for people.
    """

    rank: Callable[..., int] | None
    problem: str | None


def layout() -> int:
    """Return a checksum of the structs; the build of the package puts it into the library."""
    structs = Model, Policy, Nodes, Request
    fields = [(field[0], field[1].__name__) for struct in structs for field in struct._fields_]
    return crc32(repr(fields).encode())


def load(path: str) -> Library:
    """Load the library at *path*."""
    try:
        found = ctypes.CDLL(path)
        rank, its_layout = found.fracgpu_rank, found.fracgpu_layout
    except (OSError, AttributeError) as error:  # the latter from a library of another version
        return Library(None, str(error))
    its_layout.restype = ctypes.c_uint
    if its_layout() != layout():  # it would read other memory, which ends the process
        return Library(None, f"{path} was compiled for other structs; make setup compiles it again")
    rank.restype = _NUMBER
    return Library(rank, None)


# As an extension module would be, it is loaded when this module is imported.
LIBRARY: Final = load(f"{__file__.rpartition('/')[0]}/least_waste-{platform.machine()}.so")
