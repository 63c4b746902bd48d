"""Suggestions take bounded work, whatever the word and the known words are."""

from fracgpu.spelling import did_you_mean, nearest, room_for_list, unknown_keys
from tests.support.work import calls_of


def test_the_nearest_of_the_known_words_is_suggested() -> None:
    assert nearest("fractoin", ["memory", "fraction"]) == "fraction"
    assert did_you_mean("fractoin", ["memory", "fraction"]) == "did you mean 'fraction'?"


def test_nothing_near_is_no_suggestion() -> None:
    assert nearest("xyz", ["memory", "fraction"]) == ""
    assert did_you_mean("xyz", []) == ""


def test_suggestions_only_for_strings_up_to_63_characters() -> None:
    assert nearest("a" * 63, ["a" * 62 + "b"]) == "a" * 62 + "b"
    assert nearest("a" * 64, ["a" * 63 + "b"]) == ""
    assert nearest("abc", ["abcd" * 100, "abd"]) == "abd"


def test_a_long_suggestion_is_shown_in_part() -> None:
    assert did_you_mean("a" * 63, ["a" * 62 + "b"]) == f"did you mean '{'a' * 39}…'?"


def test_a_list_beside_a_hint_is_shorter() -> None:
    assert room_for_list("did you mean 'a'?") < room_for_list("")


def test_unknown_keys_are_named_with_what_was_probably_meant() -> None:
    said = unknown_keys(["x", "memory", "Fraction"], ("memory", "fraction"))

    assert said == ["Fraction is not a key here; did you mean fraction?", "x is not a key here"]
    assert unknown_keys(["memory"], ("memory", "fraction")) == []


def test_of_tens_of_thousands_of_unknown_keys_the_first_few_are_named_and_the_others_counted() -> (
    None
):
    keys = [f"{'ab' * 100}{n:05}" for n in range(30_000)]

    def named(count: int) -> list[str]:
        return unknown_keys(reversed(keys[-count:]), ("ab" * 31, "abc"))

    said = named(len(keys))

    assert calls_of(lambda: named(len(keys))) == calls_of(lambda: named(100))
    assert said[0] == f"{'ab' * 31}… is not a key here"
    assert said[5:] == ["29995 more keys are not known here either"]
