"""The benchmarks are found and run."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import Entry, find, main, run
from benchmarks.figure import Figure


def test_figures_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    printed_before_the_end: list[str] = []

    def figures() -> Iterator[Figure]:
        yield Figure(name="one.first", value=1, unit="ms")
        printed_before_the_end.append(capsys.readouterr().out)
        yield Figure(name="one.second", value=2.5, unit="MiB", note="peak")

    run([Entry(name="one", figures=figures)])

    (first,) = printed_before_the_end
    assert json.loads(first)["name"] == "one.first"
    assert json.loads(capsys.readouterr().out)["value"] == 2.5


def test_a_module_or_folder_with_figures_is_a_benchmark_and_any_other_is_not(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package = tmp_path / "some_benchmarks"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "quick.py").write_text("def figures():\n    return iter(())\n")
    (package / "slow.py").write_text("SLOW = True\ndef figures():\n    return iter(())\n")
    (package / "helper.py").write_text("x = 1\n")
    folder, fixtures = package / "large", package / "fixtures"
    for room in (folder, fixtures):
        room.mkdir()
        (room / "__init__.py").write_text("")
    (folder / "benchmark.py").write_text("def figures():\n    return iter(())\n")
    (package / "__main__.py").write_text("raise SystemExit\n")
    sys.path.insert(0, str(tmp_path))
    request.addfinalizer(lambda: sys.path.remove(str(tmp_path)))
    importlib.invalidate_caches()

    found = find("some_benchmarks")

    assert {name: entry.slow for name, entry in found.items()} == {
        "large": False,
        "quick": False,
        "slow": True,
    }


def test_an_unknown_name_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["no-such-thing"]) == 2
    assert "unknown benchmark no-such-thing; want some of:" in capsys.readouterr().err
