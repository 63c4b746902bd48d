"""Compiles the C of the package when it is built; all else stands in pyproject.toml.

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
HOOK: Final = Path("deviceplugin/container")
_PLAIN: Final = (
    *("-g0", "-s", "-ffreestanding", "-nostdlib"),
    *("-fno-sanitize=all", "-Wall", "-Wextra", "-Werror"),
)
_OPTIONS: Final = (
    *("-O3", "-shared", "-fPIC", "-fvisibility=hidden", *_PLAIN),
    "-ffp-contract=off",  # the same answers on each kind of processor
)


def compile_policy(folder: Path) -> None:
    """Write ``least_waste-MACHINE.so`` to *folder* for each kind of processor."""
    # library.py loads no library that was compiled for other structs than its own.
    layout = runpy.run_path(str(FOLDER / "library.py"))["layout"]()
    options = (*_OPTIONS, f"-DFRACGPU_LAYOUT={layout}u")
    for machine, (target, processor) in TARGETS.items():
        _compile(SOURCE, folder / f"least_waste-{machine}.so", target, processor, *options)


def compile_hook(folder: Path) -> None:
    """Write ``verify-MACHINE``, the hook of CDI specs, to *folder* for each kind of processor."""
    for machine in TARGETS:
        options = ("-Os", "-static", "-fno-stack-protector", *_PLAIN)
        target = f"{machine}-linux-none"
        _compile(HOOK / "verify.c", folder / f"verify-{machine}", target, "baseline", *options)


def _compile(source: Path, to: Path, target: str, processor: str, *options: str) -> None:
    words = ("-target", target, f"-mcpu={processor}", *options)
    with tempfile.TemporaryDirectory(prefix="fracgpu-build-") as cache:
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        subprocess.run(  # noqa: S603 - every word stands in this file
            [sys.executable, "-m", "ziglang", "cc", *words, "-o", str(to), str(source)],
            check=True,
            env={**os.environ, **caches},
        )


class BuildWithPrograms(build_py):
    """Copies the modules and compiles beside them; in place for ``pip install -e``."""

    def run(self) -> None:
        super().run()
        root = Path() if self.editable_mode else Path(self.build_lib)
        compile_policy(root / FOLDER)
        compile_hook(root / HOOK)


setup(cmdclass={"build_py": BuildWithPrograms})
