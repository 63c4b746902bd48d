"""Compiles least-waste when the package is built; all else stands in pyproject.toml.

The compiler is Zig's, a wheel: it needs nothing of the machine, and compiles for each kind of
processor on any other. Results are plain files of the package (``least_waste-x86_64.so``), so that
one wheel holds for all of them.
"""

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDER: Final = Path("fracgpu/placement/policies/least_waste")
SOURCE: Final = FOLDER / "least_waste.c"
# By `platform.machine()`: Zig's name of the target, and the processor to compile for at least.
# NumPy asks the same of an x86 processor.
TARGETS: Final = {
    "x86_64": ("x86_64-linux-gnu", "x86_64_v2"),
    "aarch64": ("aarch64-linux-gnu", "generic"),
}
_OPTIONS: Final = (
    *("-O3", "-g0", "-s", "-shared", "-fPIC", "-ffreestanding", "-nostdlib"),
    "-ffp-contract=off",  # the same answers on each kind of processor
    *("-fvisibility=hidden", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror"),
)


def compile_policy(folder: Path) -> None:
    """Write ``least_waste-MACHINE.so`` to *folder* for each kind of processor."""
    compiler = (sys.executable, "-m", "ziglang", "cc")
    # library.py loads no library that was compiled for other structs than its own.
    layout = runpy.run_path(str(FOLDER / "library.py"))["layout"]()
    options = (*_OPTIONS, f"-DFRACGPU_LAYOUT={layout}u")
    with tempfile.TemporaryDirectory(prefix="fracgpu-build-") as cache:
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        for machine, (target, processor) in TARGETS.items():
            files = ("-o", str(folder / f"least_waste-{machine}.so"), str(SOURCE))
            subprocess.run(  # noqa: S603 - every word stands in this file
                [*compiler, "-target", target, f"-mcpu={processor}", *options, *files],
                check=True,
                env={**os.environ, **caches},
            )


class BuildWithPolicy(build_py):
    """Copies the modules and compiles beside them; in place for ``pip install -e``."""

    def run(self) -> None:
        super().run()
        compile_policy(FOLDER if self.editable_mode else Path(self.build_lib) / FOLDER)


setup(cmdclass={"build_py": BuildWithPolicy})
