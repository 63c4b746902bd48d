"""The tests that a document names: ``FILE::TEST``; a file below tests/ holds until the next."""

import re
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]
NAMED: Final = re.compile(r"`(?P<file>[a-z_0-9/]+\.py)?::(?P<test>test_[a-z_0-9]+)`")


def missing_tests(text: str) -> list[str]:
    """Return the tests that *text* names and that do not exist."""
    missing, file = [], ""
    for match in NAMED.finditer(text):
        file = match["file"] or file
        path = _TESTS / file
        if not path.is_file() or f"def {match['test']}(" not in path.read_text():
            missing.append(f"{file}::{match['test']}")
    return missing
