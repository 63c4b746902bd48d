"""The repository for a newcomer: documents are true, and nothing depends on one machine."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listing = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - whichever git the newcomer has
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_the_readme_holds_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()

    assert "make demo" in readme
    assert "make test" in readme


def recipe(target: str) -> list[str]:
    """Return the commands of a make target, without their folder."""
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert found, f"no target {target}"
    return [line.strip().removeprefix("$(BIN)/") for line in found[1].splitlines()]


def test_git_hooks_run_what_make_check_runs() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooked = {
        hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "")
        for hook in local["hooks"]
    }

    assert hooked == {
        command.removesuffix(" .")
        for target in ("lint", "types", "imports")
        for command in recipe(target)
    }


def test_every_subcommand_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    assert [name for name in COMMANDS if f"fracgpu {name}" not in readme] == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-image.lock"])
def test_no_lock_file_names_an_index(name: str) -> None:
    lock = (ROOT / name).read_text()

    assert not re.search(r"https?://|--index|--find-links|file:", lock)


def test_no_test_stands_where_neither_make_test_nor_make_e2e_runs_it() -> None:
    assert "--ignore=tests/e2e" in recipe("test")[0]
    files = sorted((ROOT / "tests" / "e2e").glob("test_*.py"))

    assert len(files) > 30
    mark = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.e2e", re.MULTILINE)
    assert [file.name for file in files if not mark.search(file.read_text())] == []


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_page_and_what_is_compiled_for_each_processor(
    tmp_path: Path,
) -> None:
    folder = ROOT / "scheduler" / "page" / "static"
    files = {path.relative_to(ROOT).as_posix() for path in folder.iterdir()}
    folder_of_c = "fracgpu/placement/policies/least_waste"
    libraries = {f"{folder_of_c}/least_waste-{name}.so" for name in ("x86_64", "aarch64")}
    libraries |= {f"deviceplugin/container/verify-{name}" for name in ("x86_64", "aarch64")}
    source = tmp_path / "source"
    for path in tracked():
        if not path.suffix or path.suffix in (
            ".py",
            ".toml",
            ".md",
            ".html",
            ".css",
            ".js",
            ".svg",
            ".c",
            ".h",
        ):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pip", "wheel", *offline, str(source)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())

    assert files
    assert (files | libraries) - packed == set()
    assert [name for name in packed if name.endswith((".c", ".h"))] == []
    # Any Linux of these processors can take it: the tag names none.
    assert wheel.name.endswith("-py3-none-any.whl")
