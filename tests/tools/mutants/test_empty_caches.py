"""A mutant is not hidden by an answer that was kept before it."""

from functools import lru_cache

from tools.mutants.empty_caches import pytest_sessionstart


def test_an_answer_from_before_the_tests_is_forgotten() -> None:
    asked: list[int] = []

    @lru_cache(maxsize=8)
    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    double(1)
    pytest_sessionstart()
    double(1)

    assert asked == [1, 1]
