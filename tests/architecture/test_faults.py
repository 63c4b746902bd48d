"""The table of faults that a move survives names tests, and these exist."""

from pathlib import Path
from typing import Final

from tests.support.named_tests import NAMED, missing_tests

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "operations.md"


def section() -> str:
    return DOCUMENT.read_text().partition("## During a move\n")[2].partition("\n## ")[0]


def test_every_test_that_the_table_of_faults_names_exists() -> None:
    assert missing_tests(section()) == []


def test_every_line_of_the_table_of_faults_names_a_test() -> None:
    lines = [line for line in section().splitlines() if line.startswith("| ")][1:]

    assert [line for line in lines if not NAMED.search(line)] == []
    assert len(lines) > 20
