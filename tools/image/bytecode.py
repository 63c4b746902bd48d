"""Compiles Python files of the image: roles start with a read-only root and cannot do it.

The image's own interpreter compiles, run through its own loader: another version would write
other files. Bytecode does not depend on the architecture, so one for this machine is enough.
"""

from pathlib import Path

from tools.image.commands import run
from tools.image.platforms import PYTHON, Platform


def compile_folder(root: Path, folder: str, *, python_root: Path, platform: Platform) -> None:
    """Compile all modules below *folder*, a path within *root*.

    Args:
        root: the root of the image's layer.
        folder: for example ``usr/lib/python3.11``.
        python_root: a root with Debian's Python for this machine.
        platform: of this machine.

    Raises:
        CommandError: a file cannot be compiled.
    """
    libraries = python_root / "usr/lib" / platform.triplet
    run(
        [
            *(str(python_root / platform.loader), "--library-path", str(libraries)),
            *(str(python_root / f"usr/bin/python{PYTHON}"), "-B", "-s", "-m", "compileall"),
            # PEP 552: valid whatever the file's time is, and never checked.
            *("-q", "-f", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", "/", str(root / folder)),
        ],
        env={"PYTHONHOME": str(python_root / "usr"), "PYTHONHASHSEED": "0"},
    )
