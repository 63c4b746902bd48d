"""Each line on what happens when something fails names tests, and these exist."""

from typing import Final

from tests.support.helm import ROOT
from tests.support.markdown import prose
from tests.support.named_tests import NAMED, missing_tests

TEXT: Final = (ROOT / "docs" / "operations.md").read_text()


def rows() -> list[str]:
    """Return the table of failures; the one of moves is read by tests/architecture."""
    first = prose(TEXT).partition("\n## During a move\n")[0]
    return [line for line in first.splitlines() if line.startswith("| ")][1:]


def test_every_failure_names_a_test_that_shows_it() -> None:
    assert len(rows()) > 12
    assert [
        row.split(" | ")[0] for row in rows() if not any(it["file"] for it in NAMED.finditer(row))
    ] == []


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(TEXT) == []


def test_every_line_says_what_is_noticed_what_happens_and_what_to_do() -> None:
    assert [
        row for row in rows() if len([it for it in row.split("|")[1:-1] if it.strip()]) != 5
    ] == []
