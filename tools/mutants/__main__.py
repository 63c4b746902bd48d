"""``python -m tools.mutants``: which changes of the decision code does no test notice?

mutmut changes a copy of this repository, one operator or constant at a time, and runs the tests
that reach the changed function. A mutant that no test notices has survived.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
DECISIONS: Final = (
    "fracgpu/placement",
    "fracgpu/disruption",
    "fracgpu/request",
    "scheduler",
    "rebalancer",
    "deviceplugin/claims.py",
)
_COPY: Final = Path("build/mutants")
_CALLED_WRONG: Final = 2
_FAILED: Final = 1
# mutmut makes the mutants, and notes which test reaches which, before it looks for the named ones.
_NONE: Final = "no-mutant"
# What is not ours to mutate, or too large to copy.
_LEFT_OUT: Final = ("build", "dist", "__pycache__", "*.egg-info", "demo-report*", ".*")
_PLUGIN: Final = "empty_caches"  # beside this file; copied to the top, where pytest finds it
_KEPT: Final = (".importlinter", ".dockerignore", ".pre-commit-config.yaml")


def main(argv: Sequence[str]) -> int:
    """Mutate, run the tests, and say what survived; return 0 unless there is no result."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description="Say which changes of our code no test notices."
    )
    parser.add_argument(
        "modules",
        nargs="*",
        default=DECISIONS,
        metavar="MODULE",
        help=f"a file or folder of Python (default: {' '.join(DECISIONS)})",
    )
    parser.add_argument(
        "--share",
        type=_share,
        default=1.0,
        help="how much of the mutants to test, e.g. 0.2 for a fifth of them, drawn at random",
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=(),
        metavar="PATH",
        help="the tests to run (default: those of each module's room)",
    )
    options = parser.parse_args(argv)
    if missing := [
        name for name in (*options.modules, *options.tests) if not (ROOT / name).exists()
    ]:
        sys.stderr.write(f"mutants: no such file or folder: {', '.join(missing)}\n")
        return _CALLED_WRONG
    return run(
        ROOT,
        ROOT / _COPY,
        options.modules,
        tests=options.tests,
        jobs=os.cpu_count() or 1,
        share=options.share,
    )


def run(  # noqa: PLR0913 - where, what, and how much of it
    root: Path,
    copy: Path,
    modules: Sequence[str],
    *,
    jobs: int,
    tests: Sequence[str] = (),
    share: float = 1.0,
    seed: int = 0,
) -> int:
    """Test the mutants of *modules* in a *copy* of *root*, and print what survived.

    Args:
        root: a checkout, which stays as it is.
        copy: a folder, which is replaced.
        modules: files and folders, relative to *root*.
        jobs: mutants tested at once.
        tests: files and folders of tests, relative to *root*; those of the rooms if empty.
        share: of the mutants that are tested, above 0 and at most 1.
        seed: of the draw, where it is less than 1.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    shutil.copy(Path(__file__).with_name(f"{_PLUGIN}.py"), copy)
    for name in _KEPT:
        if (root / name).exists():
            shutil.copy(root / name, copy)
    with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(configuration(copy, modules, tests))
    chosen: list[str] = []
    if share < 1:
        made = _mutmut(copy, "run", "--max-children", str(jobs), _NONE, quiet=True).stdout
        chosen = sample(_results(copy), share=share, seed=seed)
        if not chosen:
            sys.stderr.write(f"{made}mutants: mutmut made no mutants in {copy}\n")
            return _FAILED
    if _mutmut(copy, "run", "--max-children", str(jobs), *chosen).returncode:
        sys.stderr.write(f"mutants: mutmut failed in {copy}\n")
        return _FAILED
    found = _results(copy)
    for name in sorted(name for name, status in found.items() if status == "survived"):
        sys.stdout.write(f"survived: {name}\n")
    sys.stdout.write(f"one of them: (cd {copy} && mutmut show NAME)\n{score(found)}\n")
    return 0


def configuration(copy: Path, modules: Sequence[str], tests: Sequence[str] = ()) -> str:
    """Return mutmut's section of ``pyproject.toml``."""
    files = [f"{name.rstrip('/')}/*" if (copy / name).is_dir() else name for name in modules]
    packages = sorted({path.parent.name for path in copy.glob("*/__init__.py")} - {"tests"})
    others = sorted(path.name for path in copy.iterdir() if path.name not in packages)
    settings: dict[str, Any] = {
        "source_paths": packages,
        "only_mutate": files,
        "also_copy": others,
        "pytest_add_cli_args_test_selection": [
            *(tests or (selection(copy, name) for name in modules))
        ],
        # A slow test starts programs, which run the code of the copy without the mutant.
        "pytest_add_cli_args": [
            *("-p", "no:cacheprovider", "-p", _PLUGIN),
            *("-m", "not slow and not e2e"),
            "--hypothesis-profile=mutants",
        ],
        # A minute, and 15 times as long as without a mutant: one that nobody notices must not look
        # like one that hangs because the machine is busy.
        "timeout_constant": 4.0,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(["", "[tool.mutmut]", *lines, ""])


def selection(root: Path, module: str) -> str:
    """Return the tests of a module: those of its room, which tests/architecture says it has."""
    path = Path("tests") / module
    room = path.parent if path.suffix == ".py" else path
    while not (root / room).is_dir():
        room = room.parent
    return str(room)


def results(listed: str) -> dict[str, str]:
    """Return what became of each mutant, from the lines of ``mutmut results``."""
    pairs = (line.strip().rpartition(": ") for line in listed.splitlines())
    return {name: status for name, _, status in pairs if "__mutmut_" in name}


def sample(found: Iterable[str], *, share: float, seed: int) -> list[str]:
    """Return a share of the mutants, at least one if there is one; the same for the same seed."""
    names = sorted(found)
    count = min(len(names), max(1, round(share * len(names))))
    return sorted(random.Random(seed).sample(names, count))  # noqa: S311 - not a secret


def score(found: Mapping[str, str]) -> str:
    """Return one line for people; a mutant that hangs a test was noticed."""
    counts = Counter(found.values())
    noticed = counts["killed"] + counts["timeout"]
    judged = noticed + counts["survived"]
    share = f"{100 * noticed / judged:.1f} %" if judged else "none"
    rest = sorted(counts.keys() - {"killed", "timeout", "survived"})
    others = "".join(f"; {counts[status]} {status}" for status in rest)
    return f"{noticed} of {judged} mutants noticed ({share}){others}"


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}; want more than 0 and at most 1")
    return value


def _results(copy: Path) -> dict[str, str]:
    return results(_mutmut(copy, "results", "--all", "true", quiet=True).stdout)


def _mutmut(copy: Path, *words: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the program beside our own interpreter
        [Path(sys.executable).with_name("mutmut"), *words],
        cwd=copy,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
