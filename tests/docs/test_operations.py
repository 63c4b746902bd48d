"""Each line on what happens when something fails names tests, and these exist."""

import re
from pathlib import Path
from typing import Final

from tests.support.helm import ROOT
from tests.support.markdown import prose

TEXT: Final = (ROOT / "docs" / "operations.md").read_text()


TESTS: Final = Path(__file__).parents[1]
# A file below tests/ holds until the next.
NAMED: Final = re.compile(r"`(?P<file>[a-z_0-9/]+\.py)?::(?P<test>test_[a-z_0-9]+)`")


def rows(part: int = 0) -> list[str]:
    """Return the lines of the table of failures, or of that of what happens during a move."""
    section = prose(TEXT).split("\n## During a move\n")[part]
    if part:
        section = section.partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_failure_names_a_test_that_shows_it() -> None:
    assert len(rows()) > 12
    assert [
        row.split(" | ")[0] for row in rows() if not any(it["file"] for it in NAMED.finditer(row))
    ] == []


def test_every_line_on_moves_names_a_test() -> None:
    assert len(rows(1)) > 20
    assert [row for row in rows(1) if not NAMED.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    missing, file = [], ""
    for match in NAMED.finditer(TEXT):
        file = match["file"] or file
        path = TESTS / file
        if not path.is_file() or f"def {match['test']}(" not in path.read_text():
            missing.append(f"{file}::{match['test']}")

    assert missing == []


def test_every_line_says_what_is_noticed_what_happens_and_what_to_do() -> None:
    assert [
        row for row in rows() if len([it for it in row.split("|")[1:-1] if it.strip()]) != 5
    ] == []
