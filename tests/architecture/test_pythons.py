"""The supported Pythons: the same everywhere, and covered by the lock and the make targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[2]
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Longer than a shell script with stand-ins takes on the busiest machine.
LIMIT_S: Final = 60


def supported() -> list[str]:
    """Return the Pythons of the Makefile, oldest first."""
    found = re.search(r"^PYTHONS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_pyproject_names_the_pythons_that_are_tested() -> None:
    oldest, *_ = named = supported()
    prefix = "Programming Language :: Python :: "

    assert [
        classifier.removeprefix(prefix) for classifier in PYPROJECT["project"]["classifiers"]
    ] == named
    assert PYPROJECT["project"]["requires-python"] == f">={oldest}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_the_readme_promises_the_pythons_that_are_tested() -> None:
    minors = [int(version.removeprefix("3.")) for version in supported()]
    readme = (ROOT / "README.md").read_text()

    assert minors == list(range(minors[0], minors[-1] + 1))
    assert re.findall(r"Python (3\.\d+) to (3\.\d+)", readme) == [
        (f"3.{minors[0]}", f"3.{minors[-1]}")
    ]


def test_the_image_runs_a_python_that_is_tested() -> None:
    used = re.findall(r"^FROM python:(3\.\d+)-", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert used
    assert set(used) <= set(supported())


def needed_by(python: str) -> set[str]:
    """Return all packages that pyproject's requirements lead to on Linux with *python*."""
    project = PYPROJECT["project"]
    texts = [*project["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    texts += [text for group in project["optional-dependencies"].values() for text in group]
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in texts]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name == project["name"] or (
            marker is not None and not marker.evaluate({**environment, "extra": extra})
        ):
            continue
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in requirements_of(name)]
    return {name for name, _ in found}


def requirements_of(name: str) -> Iterable[str]:
    # A package that the lock lacks is not installed; the assertion of the test names it.
    return (requires(name) or []) if name in locked() else []


def locked() -> set[str]:
    return set(pins("requirements.lock"))


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return for each package of a lock its version and the hashes of its files."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for entry in (ROOT / lock).read_text().replace("\\\n", "").splitlines():
        pinned, *hashes = entry.split()
        name, _, version = pinned.partition("==")
        found[canonicalize_name(name)] = version, frozenset(hashes)
    return found


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-image.lock"])
def test_every_package_is_pinned_with_the_hashes_of_its_files(lock: str) -> None:
    wrong = [
        name
        for name, (version, hashes) in pins(lock).items()
        if not version
        or not hashes
        or any(not re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
    ]

    assert wrong == []


def test_the_image_gets_the_same_files_as_developers_and_nothing_that_only_they_need() -> None:
    everything, image = pins("requirements.lock"), pins("requirements-image.lock")

    assert {name: everything.get(name) for name in image} == image
    assert {"pytest", "mypy", "ruff", "setuptools", "ziglang", "hypothesis"} & set(image) == set()
    assert {"aiohttp", "grpcio", "cryptography"} <= set(image)


@pytest.mark.parametrize("python", supported())
def test_the_lock_pins_everything_that_a_python_needs(python: str) -> None:
    needed = needed_by(python)

    assert {"aiohttp", "propcache"} < needed  # a direct requirement, and an indirect one
    assert needed - locked() == set()


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def run_test_pythons(
    folder: Path, *pythons: str, make: str = "echo"
) -> subprocess.CompletedProcess[str]:
    program(folder, "make", make)
    return subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", ROOT / "tools/test_pythons.sh", *pythons],
        env={"PATH": f"{folder}:/usr/bin:/bin", "MAKE": str(folder / "make")},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_each_python_that_runs_has_the_tests_in_an_environment_of_its_own(tmp_path: Path) -> None:
    for version in ("3.95", "3.96", "3.97"):
        program(tmp_path, f"python{version}", "exit 0")
    program(tmp_path, "python3.98", "echo not in use here >&2; exit 127")
    pythons = ("3.95", "3.96", "3.97", "3.98", "3.99")

    run = run_test_pythons(tmp_path, *pythons, make='echo "$@"; [ "$2" != PYTHON=python3.96 ]')

    assert run.stdout.splitlines() == [
        "test PYTHON=python3.95 VENV=.venv-3.95",
        "test PYTHON=python3.96 VENV=.venv-3.96",
        "test PYTHON=python3.97 VENV=.venv-3.97",
        "pythons: passed: 3.95 3.97; failed: 3.96; not found on the PATH: 3.98 3.99",
    ]
    assert run.returncode != 0
    assert run_test_pythons(tmp_path, "3.95", "3.99").returncode == 0


def test_no_python_at_all_is_a_failure(tmp_path: Path) -> None:
    run = run_test_pythons(tmp_path, "3.98", "3.99")

    assert run.stdout == "pythons: passed: none; failed: none; not found on the PATH: 3.98 3.99\n"
    assert run.returncode != 0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout in which ``make setup`` only prints which environment it would build."""
    folder = "fracgpu/placement/policies/least_waste"
    hook = "deviceplugin/container/verify.c"
    compiled = (f"{folder}/least_waste.c", f"{folder}/library.py", hook)
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "setup.py", *compiled):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/setup_venv.sh").write_text('mkdir -p "$VENV"; echo "built with $PYTHON"\n')
    (tmp_path / "tools/setup_prometheus.sh").touch()
    return tmp_path


def set_up(checkout: Path, *variables: str) -> str:
    path = os.pathsep.join((str(checkout / "bin"), "/usr/bin", "/bin"))
    return subprocess.run(  # noqa: S603 - our own Makefile
        ["make", "--no-print-directory", "setup", *variables],  # noqa: S607
        cwd=checkout,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    ).stdout


def test_an_environment_is_built_once_for_a_python_and_anew_for_another(checkout: Path) -> None:
    newer = checkout / "newer"
    program(checkout, newer.name, "echo 3.99")
    here = f"PYTHON={sys.executable}"

    assert set_up(checkout, here) == f"built with {sys.executable}\n"
    assert set_up(checkout, here) == ""
    assert set_up(checkout, f"PYTHON={newer}") == f"built with {newer}\n"


def test_setup_takes_the_oldest_supported_python_that_runs(checkout: Path) -> None:
    (checkout / "bin").mkdir()
    oldest, second, *_ = supported()
    program(checkout / "bin", f"python{oldest}", "exit 127")
    program(checkout / "bin", f"python{second}", "exit 0")

    assert set_up(checkout) == f"built with python{second}\n"
