"""Pauses double, stay below their cap, and are never zero."""

from hypothesis import given
from hypothesis import strategies as st

from kube.retry import RetryPolicy

POLICY = RetryPolicy(first_pause_s=0.2, longest_pause_s=3.0)


@given(st.integers(1, 10_000))
def test_a_pause_lies_between_half_its_ceiling_and_its_ceiling(failures: int) -> None:
    ceiling = min(3.0, 0.2 * 2 ** min(failures - 1, 30))

    assert ceiling / 2 <= POLICY.pause_s(failures) <= ceiling


def test_a_crowd_does_not_come_back_all_at_once() -> None:
    assert len({POLICY.pause_s(5) for _ in range(50)}) > 1
