"""Cells are cut by the columns that they take on a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.printers.cells import columns_of, fit, pad, safe


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [("gpu-1", 5, "gpu-1"), ("gpu-10", 5, "gpu-…"), ("显卡显卡", 5, "显卡…"), ("ab", 0, "")],
)
def test_what_is_too_long_is_cut_with_a_mark(text: str, columns: int, wanted: str) -> None:
    assert fit(text, columns) == wanted


@given(st.text(), st.integers(0, 40))
def test_a_cut_text_never_takes_more_columns_and_a_filled_one_takes_as_many(
    text: str, columns: int
) -> None:
    cut = fit(safe(text), columns)

    assert columns_of(cut) <= columns
    assert columns_of(pad(cut, columns)) == columns


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("显卡", "显卡"),
        ("\x1b[31m", "<U+001B>[31m"),
        ("a\u202eb", "a<U+202E>b"),
        ("\u2028", "<U+2028>"),
        ("\x9b", "<U+009B>"),
    ],
)
def test_what_steers_a_terminal_is_written_as_its_code_point(text: str, wanted: str) -> None:
    assert safe(text) == wanted
