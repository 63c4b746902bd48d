"""What a library needs is read from it, and what is missing is told."""

import importlib
import shutil
import ssl
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from tools.image.elf import missing_libraries, needed_by

GRPC = Path(str(importlib.import_module("grpc._cython.cygrpc").__file__))


def test_the_libraries_that_a_module_needs_are_read() -> None:
    assert EXTENSION_SUFFIXES[0] in GRPC.name

    assert {"libstdc++.so.6", "libc.so.6"} <= set(needed_by(GRPC))


def test_what_is_no_program_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    assert needed_by(Path(ssl.__file__)) == []
    assert needed_by(tmp_path / "empty") == []
    assert any("libc.so" in name for name in needed_by(Path(sys.executable).resolve()))


def test_a_library_that_no_layer_has_is_missing_with_the_file_that_needs_it(
    tmp_path: Path,
) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    upper.mkdir()
    lower.mkdir()
    shutil.copy(GRPC, upper / GRPC.name)
    needed = needed_by(GRPC)
    for name in needed:
        (lower / name).touch()
    assert missing_libraries([lower, upper]) == {}

    (lower / "libstdc++.so.6").unlink()

    assert missing_libraries([lower, upper]) == {"libstdc++.so.6": GRPC.name}
