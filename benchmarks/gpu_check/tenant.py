"""A process in the cgroup that is its argument, which uses a card as its standard input says."""

import ctypes
import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_check.check import TenantError
from deviceplugin.enforcement.cgroups import write_line
from fracgpu.units import BYTES_PER_MIB, Mib

_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_LIBRARY: Final = "libcuda.so.1"


class Cuda:
    """The first card that CUDA shows, through the driver's library.

    Raises:
        TenantError: the driver has no CUDA, or does not let us use a card.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise TenantError(str(error)) from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def total_mib(self) -> Mib:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return Mib(total.value // BYTES_PER_MIB)

    def allocate(self, mib: Mib) -> bool:
        address, size = ctypes.c_uint64(), ctypes.c_size_t(mib * BYTES_PER_MIB)
        fine = (0, _OUT_OF_MEMORY)
        return self._call("cuMemAlloc_v2", ctypes.byref(address), size, fine=fine) == 0

    def _call(self, name: str, *arguments: Any, fine: Collection[int] = (0,)) -> int:
        code = int(getattr(self._library, name)(*arguments))
        if code not in fine:
            raise TenantError(f"CUDA's {name} answers with error {code}")
        return code


def _answer(cuda: Cuda, command: Mapping[str, Any]) -> int | bool:
    if "allocate" in command:
        return cuda.allocate(Mib(command["allocate"]))
    return cuda.total_mib()


def main(group: str) -> None:
    """Answer commands until nobody is left to send them."""
    # Before CUDA knows of this process: a limit counts what a cgroup's processes allocate.
    write_line(Path(group) / "cgroup.procs", f"{os.getpid()}\n")
    try:
        cuda = Cuda()
        _say({"ready": True})
        for line in sys.stdin:
            _say({"value": _answer(cuda, json.loads(line))})
    except TenantError as error:
        _say({"error": str(error)})


def _say(value: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
