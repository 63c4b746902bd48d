"""Globs match as fnmatch does, in one step for each character of the name."""

import fnmatch
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fracgpu.globs import (
    MAX_GLOB_CHARS,
    any_glob_covers,
    any_glob_matches,
    any_glob_overlaps,
    as_regex,
    is_glob,
)
from tests.support.work import Walked, counted_lines

GLOBS = st.text(alphabet="ab-*?[]!^\\c.", max_size=9)
TEXTS = st.text(alphabet="ab-[]!^\\c.\n", max_size=6)


def runs_backwards(glob: str) -> bool:
    """Report a reversed range such as ``[c-a]``, which fnmatch removes before it looks at ``!``"""
    return any(span[0] > span[2] for span in re.findall(r"(?=(.-.))", glob, re.DOTALL))


@given(glob=GLOBS, text=TEXTS)
def test_a_glob_matches_what_fnmatch_matches(glob: str, text: str) -> None:
    assume(not runs_backwards(glob))

    assert any_glob_matches(text, (glob,)) is fnmatch.fnmatchcase(text, glob)


@given(glob=GLOBS, text=TEXTS)
def test_the_regular_expression_of_a_glob_matches_what_it_does(glob: str, text: str) -> None:
    assume("\n" not in text)
    regex = as_regex(glob).replace(r"\x{10FFFF}", r"\U0010FFFF")  # as Python spells it

    assert bool(re.fullmatch(regex, text)) is any_glob_matches(text, (glob,))


@given(globs=st.lists(GLOBS, max_size=5), text=TEXTS)
def test_many_globs_match_where_one_of_them_does(globs: list[str], text: str) -> None:
    each = any(any_glob_matches(text, (glob,)) for glob in globs)

    assert any_glob_matches(text, tuple(globs)) is each


@given(GLOBS)
def test_without_a_wildcard_a_glob_stands_for_itself(glob: str) -> None:
    if not is_glob(glob):
        assert any_glob_matches(glob, (glob,))
        assert not any_glob_matches(f"{glob}x", (glob,))


@pytest.mark.parametrize(
    ("glob", "text", "matches"),
    [
        ("*A100*", "NVIDIA-A100-SXM4-80GB", True),
        ("*A100", "NVIDIA-A100-SXM4-80GB", False),
        ("NVIDIA-?100*", "NVIDIA-H100-PCIe", True),
        ("*[AH]100*", "NVIDIA-H100-PCIe", True),
        ("*[!A]100*", "NVIDIA-A100-PCIe", False),
        ("[c-a]", "b", False),
        ("[!c-a]", "b", True),
        ("", "", True),
        ("*", "", True),
        ("**", "anything", True),
        ("[", "[", True),
    ],
)
def test_what_the_documents_promise(glob: str, text: str, matches: bool) -> None:
    assert any_glob_matches(text, (glob,)) is matches


def test_a_glob_longer_than_any_name_matches_nothing() -> None:
    assert any_glob_matches("a", ("*" * MAX_GLOB_CHARS,))
    assert not any_glob_matches("a", ("*" * (MAX_GLOB_CHARS + 1),))


@pytest.mark.parametrize("glob", ["*a" * 48, "[" * 96, "*[!b]" * 19, "*" * 95 + "b", "[a-z" * 24])
def test_a_glob_takes_a_few_steps_for_each_character_of_a_name(glob: str) -> None:
    any_glob_matches("a", (glob,))
    name = Walked("a" * 96)

    with counted_lines() as lines:
        any_glob_matches(name, (glob,))

    assert 1 <= name.walked <= 96
    assert lines.count <= 10 * 96


@given(one=GLOBS, other=GLOBS, text=TEXTS)
def test_globs_that_match_one_text_overlap(one: str, other: str, text: str) -> None:
    if any_glob_matches(text, (one,)) and any_glob_matches(text, (other,)):
        assert any_glob_overlaps(one, (other,))
        assert any_glob_overlaps(other, (one,))


@given(wide=GLOBS, narrow=GLOBS, text=TEXTS)
def test_a_glob_that_covers_another_matches_all_that_it_matches(
    wide: str, narrow: str, text: str
) -> None:
    if any_glob_covers(narrow, (wide,)) and any_glob_matches(text, (narrow,)):
        assert any_glob_matches(text, (wide,))


@given(glob=GLOBS, text=TEXTS)
def test_of_a_name_covering_and_overlapping_are_matching(glob: str, text: str) -> None:
    assume(not is_glob(text))

    matches = any_glob_matches(text, (glob,))
    assert any_glob_covers(text, (glob,)) is matches
    assert any_glob_overlaps(glob, (text,)) is matches


@pytest.mark.parametrize(
    ("one", "other", "overlap", "covers"),
    [
        ("*a100*", "nvidia-a100*80gb*", True, True),
        ("*a100*40gb", "*a100*80gb", False, False),
        ("*a100*pcie*", "nvidia-a100*80gb*", True, False),
        ("nvidia-?100*", "nvidia-[ah]100-*", True, True),
        ("nvidia-a100*", "nvidia-h100*", False, False),
        ("*", "*", True, True),
        ("a", "b", False, False),
    ],
)
def test_classes_of_models_are_compared_by_their_globs(
    one: str, other: str, overlap: bool, covers: bool
) -> None:
    assert any_glob_overlaps(one, (other,)) is overlap
    assert any_glob_covers(other, (one,)) is covers
