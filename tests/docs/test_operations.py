"""Each line on what happens when something fails names tests, and these exist."""

import re
from typing import Final

from tests.support.helm import ROOT
from tests.support.markdown import prose

TEXT: Final = (ROOT / "docs" / "operations.md").read_text()
_NAMED: Final = re.compile(r"`(?P<file>[a-z_0-9/]+\.py)::(?P<test>test_[a-z_0-9]+)`")


def rows() -> list[str]:
    return [line for line in prose(TEXT).splitlines() if line.startswith("| ")][1:]


def test_every_failure_names_a_test_that_shows_it() -> None:
    assert len(rows()) > 12
    assert [row.split(" | ")[0] for row in rows() if not _NAMED.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    found = [(match["file"], match["test"]) for match in _NAMED.finditer(TEXT)]

    assert [
        f"{file}::{test}"
        for file, test in found
        if not (ROOT / "tests" / file).is_file()
        or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ] == []


def test_every_line_says_what_is_noticed_what_happens_and_what_to_do() -> None:
    assert [
        row for row in rows() if len([it for it in row.split("|")[1:-1] if it.strip()]) != 5
    ] == []
