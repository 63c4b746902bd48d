"""The table of faults that a move survives names tests, and these exist."""

import re
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
DOCUMENT: Final = TESTS.parent / "docs" / "rebalancer.md"
_NAMED: Final = re.compile(r"`(?P<file>[a-z_0-9/]+\.py)?::(?P<test>test_[a-z_0-9]+)`")


def named() -> list[tuple[str, str]]:
    """Return file and test of each that the table names; a file holds until the next one."""
    section = DOCUMENT.read_text().partition("## What it survives\n")[2].partition("\n## ")[0]
    found, file = [], ""
    for match in _NAMED.finditer(section):
        file = match["file"] or file
        found.append((file, match["test"]))
    return found


def test_every_test_that_the_table_of_faults_names_exists() -> None:
    missing = [
        f"{file}::{test}"
        for file, test in named()
        if not (TESTS / file).is_file() or f"def {test}(" not in (TESTS / file).read_text()
    ]

    assert missing == []


def test_every_line_of_the_table_of_faults_names_a_test() -> None:
    section = DOCUMENT.read_text().partition("## What it survives\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]

    assert [line for line in lines if not _NAMED.search(line)] == []
    assert len(lines) > 20
