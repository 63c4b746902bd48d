"""The shared libraries that programs need: none may be missing in an image that cannot be run here.

Source: elf(5), for 64-bit little-endian files, which those of both architectures are.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x7fELF\x02\x01"
_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_ENTRY: Final = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_END, _NEEDED, _STRINGS = 0, 1, 5


def missing_libraries(roots: Iterable[Path]) -> dict[str, str]:
    """Return each library that a file below *roots* needs and none of them has, and one such file.

    Libraries are looked for by their file names, wherever they are: packages of Python find their
    own in folders beside them.
    """
    there: set[str] = set()
    needed: dict[str, str] = {}
    for root in roots:
        for path in sorted(root.rglob("*")):
            if ".so" in path.name:
                there.add(path.name)
            if path.is_file() and not path.is_symlink():
                needed |= dict.fromkeys(needed_by(path), str(path.relative_to(root)))
    return {name: path for name, path in needed.items() if name not in there}


def needed_by(path: Path) -> list[str]:
    """Return the libraries that a file names as needed; none, if it is no program or library."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return []
    data = path.read_bytes()
    loads, dynamic = [], None
    for kind, _, offset, address, _, size, _, _ in _program_headers(data):
        if kind == _LOAD:
            loads.append((address, offset, size))
        elif kind == _DYNAMIC:
            dynamic = data[offset : offset + size]
    entries = list(_entries(dynamic or b""))
    strings = next((value for tag, value in entries if tag == _STRINGS), None)
    if strings is None:
        return []
    table = next(
        offset + strings - address
        for address, offset, size in loads
        if address <= strings < address + size
    )
    return [_text(data, table + value) for tag, value in entries if tag == _NEEDED]


def _program_headers(data: bytes) -> Iterator[tuple[int, ...]]:
    header = _HEADER.unpack_from(data)
    start, size, count = header[4], header[8], header[9]
    for number in range(count):
        yield _PROGRAM.unpack_from(data, start + number * size)


def _entries(dynamic: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in _ENTRY.iter_unpack(dynamic[: len(dynamic) // _ENTRY.size * _ENTRY.size]):
        if tag == _END:
            return
        yield tag, value


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
