"""The upper layers: the packages of ``requirements-image.lock``, and FracGPU itself.

pip takes wheels for another architecture as it takes its own, and checks the hash of each.
"""

import csv
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.image.commands import run
from tools.image.platforms import PYTHON, Platform

SITE: Final = f"usr/local/lib/python{PYTHON}/dist-packages"
LOCK: Final = "requirements-image.lock"
_SCRIPT: Final = """\
#!/usr/bin/python{python}
import sys

from cli.main import main

sys.exit(main())
"""
# What of a wheel no program needs to run: tests, stubs, and sources of compiled modules.
_FOLDERS: Final = ("tests", "test", "include")
_SUFFIXES: Final = (".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".a", ".lib", ".f90", ".pyf")


def install_locked(source: Path, platform: Platform, root: Path) -> None:
    """Install the locked packages below *root*.

    Raises:
        CommandError: a package has no wheel for *platform*, or not the hash of the lock.
    """
    site = root / SITE
    site.mkdir(parents=True)
    tags = [word for tag in platform.wheel_tags for word in ("--platform", tag)]
    run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"),
            *("--python-version", PYTHON, "--implementation", "cp", *tags),
            *("--target", str(site), "--requirement", str(source / LOCK)),
        ]
    )
    # Programs of packages start with the path of this machine's Python, and nobody needs them.
    shutil.rmtree(site / "bin", ignore_errors=True)
    prune(site)


def prune(site: Path) -> None:
    """Remove from installed packages what no program needs to run, and from their lists of files.

    A list that named a removed program would name the hash of its first line as well, which is
    the path of this machine's Python: the image would depend on where it was built.
    """
    for folder in sorted(site.rglob("*"), reverse=True):
        if folder.is_dir() and folder.name in _FOLDERS and not folder.is_symlink():
            shutil.rmtree(folder)
        elif folder.is_file() and folder.suffix in _SUFFIXES:
            folder.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        _forget_missing(record, site)


def _forget_missing(record: Path, site: Path) -> None:
    """Leave in a wheel's RECORD (rows of path, hash and size) what is there."""
    with record.open(newline="") as source:
        rows = [row for row in csv.reader(source) if row and (site / row[0]).exists()]
    with record.open("w", newline="") as target:
        csv.writer(target, lineterminator="\n").writerows(rows)


def install_ours(source: Path, root: Path, *, epoch: int) -> None:
    """Build FracGPU's own wheel from *source* and install it below *root*, with its command.

    Raises:
        CommandError: the wheel cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="fracgpu-wheel-") as work:
        copy = Path(work) / "source"
        _copy_context(source, copy)
        built = Path(work) / "built"
        run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(copy)),
            ],
            env={**_environment(), "SOURCE_DATE_EPOCH": str(epoch)},
        )
        (wheel,) = built.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / SITE)
    programs = root / "usr/local/bin"
    programs.mkdir(parents=True)
    script = programs / "fracgpu"
    script.write_text(_SCRIPT.format(python=PYTHON))
    script.chmod(0o755)
    for name in ("python", "python3"):
        (programs / name).symlink_to(f"/usr/bin/python{PYTHON}")


def context(source: Path) -> list[str]:
    """Return what the image is built from: the names that ``.dockerignore`` lets in."""
    lines = (source / ".dockerignore").read_text().splitlines()
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


def _copy_context(source: Path, target: Path) -> None:
    """Copy without what earlier builds and runs have left."""
    target.mkdir()
    for name in context(source):
        found = source / name
        if found.is_dir():
            shutil.copytree(found, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, target / name)


def _environment() -> Mapping[str, str]:
    """Return this process's environment, with which pip finds its configuration."""
    return dict(os.environ)
