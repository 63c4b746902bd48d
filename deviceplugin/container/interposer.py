"""The library that an administrator put on the node, which limits the container that loads it.

A dynamic loader that cannot load a library of ``LD_PRELOAD`` says so and goes on without it; so
whatever would keep it from that is found before the start.
"""

import os
import platform
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Of an ELF file: magic, class, byte order, version, padding; type; machine.
_HEADER: Final = struct.Struct("<4sBBB9xHH")
_ELF_64_BIT_LITTLE: Final = (b"\x7fELF", 2, 1, 1)
_SHARED_OBJECT: Final = 3
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}


class Interposer:
    """A library on the node.

    Args:
        file: under the same path on the host.
        machine: the node's processor.
        file_system: reads the flags of the mount that an open file is on.
    """

    def __init__(
        self,
        file: Path,
        *,
        machine: str = platform.machine(),
        file_system: Callable[[int], os.statvfs_result] = os.fstatvfs,
    ) -> None:
        self.file = file
        self._machine = machine
        self._file_system = file_system

    def why_not(self) -> str | None:
        """Return why no container can load it, or None."""
        try:
            with self.file.open("rb") as library:
                mode = os.fstat(library.fileno()).st_mode
                mount = self._file_system(library.fileno())
                header = library.read(_HEADER.size)
        except OSError as error:
            return f"there is no library {self.file}: {error.strerror}"
        if len(header) < _HEADER.size or _HEADER.unpack(header)[:4] != _ELF_64_BIT_LITTLE:
            return f"{self.file} is no 64-bit ELF file"
        *_, kind, machine = _HEADER.unpack(header)
        if kind != _SHARED_OBJECT:
            return f"{self.file} is no shared library"
        if machine != _MACHINES.get(self._machine):
            return f"{self.file} is not for this node's processor, {self._machine}"
        if not mode & stat.S_IROTH:
            return f"{self.file} cannot be read by every user: chmod o+r"
        if mount.f_flag & os.ST_NOEXEC:
            return f"{self.file} is on a noexec mount"
        return None
