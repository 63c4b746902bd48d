"""The glossary of docs/architecture.md: each term once, and each name in the code as it says."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_ROW: Final = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_HEADS: Final = ("term", "---")


def rows() -> list[tuple[str, str, str]]:
    glossary = PAGE.partition("\n## Glossary\n")[2]
    return [found for found in _ROW.findall(glossary) if found[0] not in _HEADS]


def named(cell: str) -> list[tuple[str, Path]]:
    """Return the names of a row's last cell, each with its file; empty for the file itself."""
    found = []
    for part in cell.split("; "):
        *names, place = re.findall(r"`([^`]+)`", part)
        found += [(name, ROOT / place) for name in names or [""]]
    return found


def defined(file: Path) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


def test_no_term_stands_twice() -> None:
    terms = [term for row in rows() for term in row[0].lower().split(", ")]

    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_a_term_is_called_in_the_code_exists(row: tuple[str, str, str]) -> None:
    places = named(row[2])

    assert places
    assert [str(file) for _, file in places if not file.exists()] == []
    assert [name for name, file in places if name and name not in defined(file)] == []
