"""Compiles parts of least-waste when the package is built; all else stands in pyproject.toml.

The compiler is Zig's, a wheel: it needs nothing of the machine, and compiles for each kind of
processor on any other. Results are plain files of the package (``fill-x86_64.so``), so that one
wheel holds for all of them.
"""

import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDER: Final = Path("fracgpu/placement/policies/least_waste/fill")
SOURCES: Final = tuple(
    str(FOLDER / f"{name}.c") for name in ("evaluate", "fill", "options", "scarcity", "states")
)
# By `platform.machine()`: Zig's name of the target, and the processor to compile for at least.
# NumPy asks the same of an x86 processor.
TARGETS: Final = {
    "x86_64": ("x86_64-linux-gnu", "x86_64_v2"),
    "aarch64": ("aarch64-linux-gnu", "generic"),
}
_OPTIONS: Final = (
    *("-O3", "-g0", "-s", "-shared", "-fPIC", "-ffreestanding", "-nostdlib"),
    "-ffp-contract=off",  # NumPy rounds after each operation
    *("-fvisibility=hidden", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror"),
)


def compile_fill(folder: Path) -> None:
    """Write ``fill-MACHINE.so`` to *folder* for each kind of processor."""
    compiler = (sys.executable, "-m", "ziglang", "cc")
    # compiled_fill.py has it too, and loads nothing else.
    checksum = zlib.crc32(b"".join(each.read_bytes() for each in sorted(FOLDER.glob("*.[ch]"))))
    options = (*_OPTIONS, f"-DFRACGPU_SOURCES={checksum}u")
    with tempfile.TemporaryDirectory(prefix="fracgpu-fill-") as cache:
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        for machine, (target, processor) in TARGETS.items():
            files = ("-o", str(folder / f"fill-{machine}.so"), *SOURCES)
            subprocess.run(  # noqa: S603 - every word stands in this file
                [*compiler, "-target", target, f"-mcpu={processor}", *options, *files],
                check=True,
                env={**os.environ, **caches},
            )


class BuildWithFill(build_py):
    """Copies the modules and compiles the fill beside them; in place for ``pip install -e``."""

    def run(self) -> None:
        super().run()
        compile_fill(FOLDER if self.editable_mode else Path(self.build_lib) / FOLDER)


setup(cmdclass={"build_py": BuildWithFill})
