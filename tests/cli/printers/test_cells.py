"""Cells are cut by the columns that they take on a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.printers.cells import columns_of, fit, pad, safe, wrap


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


@given(st.lists(st.text("ab显 ", min_size=1, max_size=9)), st.integers(4, 40))
def test_a_wrapped_text_keeps_its_words_and_breaks_only_where_a_word_ends(
    parts: list[str], columns: int
) -> None:
    text = " ".join(parts).strip()

    lines = wrap(text, columns, indent=2)

    assert " ".join(lines).split() == text.split()
    assert all(
        columns_of(line) <= columns or len(line.split()) == 1 or line is lines[-1] for line in lines
    )


def test_the_lines_of_a_wrapped_text_are_indented_below_the_first() -> None:
    text = "  why: one two three four"

    assert wrap(text, 14, indent=6) == ["  why: one two", "      three", "      four"]
    assert wrap(text, 99, indent=6) == [text]


def test_a_word_longer_than_a_line_stays_whole() -> None:
    uid = "GPU-480a7b84-bf69-5328-ace7-2c9c0ab3a222"

    assert wrap(f"card {uid} is hot", 20, indent=2) == ["card", f"  {uid}", "  is hot"]
