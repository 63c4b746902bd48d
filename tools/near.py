# ruff: noqa: INP001 - a script, not a package
"""``python tools/near.py FILE...``: run the tests nearest to files, in seconds.

Nearest is the first that exists of: the test module itself; the one below tests/ that mirrors the
file's place and name; those in the folder that mirrors its own that import it, directly or through
what supports them; a few that do so elsewhere; that folder. What needs real parts is left out.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_REAL_PARTS: Final = ("tests/e2e", "tests/card")
_FEW: Final = 12
_CALLED_WRONG: Final = 2


def nearest(file: Path, root: Path = ROOT) -> list[Path]:
    """Return the test modules, or the folder of tests, nearest to *file*; all below *root*."""
    mirrored = Path("tests") / file.parent / f"test_{file.name}"
    for path in (file, mirrored):
        if path.name.startswith("test_") and (root / path).is_file():
            return [path]
    folders = [
        Path("tests") / parent for parent in file.parents if (root / "tests" / parent).is_dir()
    ]
    folder = file.parent if file.parts[0] == "tests" else folders[0]
    importing = sorted(_importers(".".join(file.with_suffix("").parts), root))
    here = [path for path in importing if path.is_relative_to(folder)]
    return here or (importing if 0 < len(importing) <= _FEW else [folder])


def _importers(module: str, root: Path) -> Iterator[Path]:
    """Yield the test modules that import *module*, or a module of tests/ that does."""
    paths = [path.relative_to(root) for path in (root / "tests").rglob("*.py")]
    quick = [path for path in paths if not any(map(path.is_relative_to, _REAL_PARTS))]
    imports = {path: set(_imports(root / path)) for path in quick}
    wanted, found = {module}, set[Path]()
    while new := {path for path, names in imports.items() if names & wanted} - found:
        found |= new
        wanted = {".".join(path.with_suffix("").parts) for path in new}
    yield from (path for path in found if path.name.startswith("test_"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def main(files: Sequence[str]) -> int:
    """Run the nearest tests; return pytest's exit code."""
    if not files or not all((ROOT / file).is_file() for file in files):
        sys.stderr.write("make near: want FILE=path/of/a/file.py of this repository\n")
        return _CALLED_WRONG
    words = sorted({str(path) for file in files for path in nearest(Path(file))})
    sys.stdout.write(f"near: {' '.join(words)}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not e2e and not card and not slow"]
    return subprocess.run([*command, *words], cwd=ROOT, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
