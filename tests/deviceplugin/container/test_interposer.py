"""A library of the node is used only if a container's dynamic loader can load it."""

import os
import platform
import struct
from pathlib import Path

import pytest

from deviceplugin.container.interposer import Interposer


def an_elf_file(
    file: Path, *, magic: bytes = b"\x7fELF", bits: int = 2, kind: int = 3, machine: int = 62
) -> Interposer:
    file.write_bytes(struct.pack("<4sBBB9xHH", magic, bits, 1, 1, kind, machine) + bytes(40))
    file.chmod(0o644)
    return Interposer(file, machine="x86_64")


def test_a_shared_library_for_this_processor_is_used(tmp_path: Path) -> None:
    file = tmp_path / "libvgpu.so"

    assert an_elf_file(file).why_not() is None
    assert (
        an_elf_file(file, machine=183).why_not()
        == f"{file} is not for this node's processor, x86_64"
    )


def test_a_library_of_this_machine_is_one() -> None:
    (libc,) = {
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so.6" in line or "/libc-" in line
    }

    assert Interposer(libc, machine=platform.machine()).why_not() is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"magic": b"MZ\0\0"}, "is no 64-bit ELF file"),
        ({"bits": 1}, "is no 64-bit ELF file"),
        ({"kind": 2}, "is no shared library"),
    ],
)
def test_what_no_loader_loads_is_named(
    tmp_path: Path, changes: dict[str, int | bytes], why: str
) -> None:
    assert why in str(an_elf_file(tmp_path / "lib", **changes).why_not())  # type: ignore[arg-type]


def test_a_library_that_is_missing_short_or_secret_is_named(tmp_path: Path) -> None:
    file = tmp_path / "libvgpu.so"
    assert "there is no library" in str(Interposer(file).why_not())
    file.write_bytes(b"\x7fELF")
    assert "is no 64-bit ELF file" in str(Interposer(file).why_not())
    library = an_elf_file(file)
    file.chmod(0o600)
    assert "cannot be read by every user" in str(library.why_not())


def test_a_library_where_nothing_may_run_is_named(tmp_path: Path) -> None:
    """The loader would say that it cannot map it, and go on without it."""
    an_elf_file(tmp_path / "libvgpu.so")

    def no_exec(descriptor: int) -> os.statvfs_result:
        found = list(os.fstatvfs(descriptor))
        found[8] |= os.ST_NOEXEC  # f_flag
        return os.statvfs_result(found)

    library = Interposer(tmp_path / "libvgpu.so", machine="x86_64", file_system=no_exec)
    assert "is on a noexec mount" in str(library.why_not())
