"""The driver of mutmut, on a repository of one function, of which the test knows one half."""

import re
from pathlib import Path

import pytest

from tools.mutants.__main__ import (
    configuration,
    main,
    results,
    run,
    sample,
    score,
    selection,
)

_PROJECT = """
[tool.pytest.ini_options]
testpaths = ["tests"]
markers = ["slow", "e2e"]
"""
_CODE = """
def larger(a: int, b: int) -> int:
    return a if a > b else b


def smaller(a: int, b: int) -> int:
    return a if a < b else b
"""
_CONFTEST = """
from hypothesis import settings

settings.register_profile("mutants")
"""
_TESTS = """
from room.sizes import larger, smaller


def test_larger() -> None:
    assert (larger(1, 3), larger(3, 1)) == (3, 3)


def test_smaller() -> None:
    assert smaller(1, 3)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one room."""
    folder = tmp_path / "root"
    for path, text in {
        "pyproject.toml": _PROJECT,
        "room/__init__.py": "",
        "room/sizes.py": _CODE,
        "tests/__init__.py": "",
        "tests/conftest.py": _CONFTEST,
        "tests/room/__init__.py": "",
        "tests/room/test_sizes.py": _TESTS,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)  # mutmut starts four times, and a process for each mutant
def test_of_a_share_a_mutant_that_no_test_notices_is_shown_and_the_checkout_stays_as_it_is(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file()}

    # Of both functions; one mutant is not drawn.
    assert run(root, tmp_path / "copy", ["room/sizes.py"], jobs=1, share=0.8, seed=0) == 0

    output = capfd.readouterr().out
    assert "survived: room.sizes.x_smaller__mutmut_1" in output
    assert "survived: room.sizes.x_larger__mutmut_1" not in output
    assert re.match(r"^[1-9] of 5 mutants noticed \(.*; 1 not checked$", output.splitlines()[-1])
    kept = {path: path.read_bytes() for path in root.rglob("*.*") if path.suffix != ".pyc"}
    assert {path: kept[path] for path in before} == before


def test_a_share_is_the_same_for_the_same_seed_and_never_empty() -> None:
    names = [f"room.sizes.x_f__mutmut_{number}" for number in range(100)]

    drawn = sample(names, share=0.2, seed=1)

    assert drawn == sample(reversed(names), share=0.2, seed=1)
    assert len(set(drawn)) == 20
    assert drawn != sample(names, share=0.2, seed=2)
    assert len(sample(names, share=0.001, seed=1)) == 1
    assert sample([], share=0.5, seed=1) == []


@pytest.mark.parametrize("share", ["0", "1.5", "-1"])
def test_a_share_is_a_part_of_the_whole(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--share", share])
    assert f"'{share}'; want more than 0" in capsys.readouterr().err


def test_a_folder_is_mutated_with_all_below_it(root: Path) -> None:
    written = configuration(root, ["room/"])

    assert 'only_mutate = ["room/*"]' in written
    assert 'source_paths = ["room"]' in written
    assert 'pytest_add_cli_args_test_selection = ["tests/room"]' in written


def test_a_module_is_tested_by_the_tests_of_its_room(root: Path) -> None:
    assert selection(root, "room/sizes.py") == "tests/room"
    assert selection(root, "room/inner/sizes.py") == "tests/room"


def test_a_hanging_mutant_is_noticed_and_one_without_tests_is_not_judged() -> None:
    listed = "".join(
        f"    room.sizes.x_f__mutmut_{number}: {status}\n"
        for number, status in enumerate(["killed", "timeout", "survived", "no tests", "killed"])
    )

    assert score(results(listed)) == "3 of 4 mutants noticed (75.0 %); 1 no tests"


def test_the_tests_can_be_named(root: Path) -> None:
    written = configuration(root, ["room/"], ["tests/other", "tests/room/test_sizes.py"])

    wanted = 'pytest_add_cli_args_test_selection = ["tests/other", "tests/room/test_sizes.py"]'
    assert wanted in written


def test_a_module_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fracgpu/nowhere.py"]) == 2
    assert "fracgpu/nowhere.py" in capsys.readouterr().err
