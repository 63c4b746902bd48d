"""What counts depends on whether pods leave; unknown is taken as filling up."""

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Turnover, Weights

MILLI = st.integers(1, 8000)


def after(*, started_cards: int, ended_cards: int) -> Weights:
    turnover = Turnover()
    for _ in range(started_cards):
        turnover.started(1000)
    for _ in range(ended_cards):
        turnover.ended(1000)
    return turnover.weights


@given(st.lists(MILLI))
def test_a_cluster_that_pods_never_leave_fills_up(taken: list[int]) -> None:
    turnover = Turnover()
    for milli in taken:
        turnover.started(milli)
        assert turnover.weights == FILLING


def test_as_many_ends_as_starts_are_turnover() -> None:
    turnover = Turnover()
    for _ in range(1000):
        turnover.started(500)
        turnover.ended(500)
    assert turnover.weights == TURNING_OVER


def test_a_few_pods_that_end_say_nothing() -> None:
    assert after(started_cards=0, ended_cards=5) == FILLING
    assert after(started_cards=5, ended_cards=5) == FILLING


def test_a_cluster_that_pods_only_join_for_long_fills_up_again() -> None:
    turnover = Turnover()
    for _ in range(1000):
        turnover.started(1000)
        turnover.ended(1000)
    for _ in range(200):
        turnover.started(1000)
    assert turnover.weights == TURNING_OVER, "half of what ended is not forgotten yet"
    for _ in range(500):
        turnover.started(1000)
    assert turnover.weights == FILLING


def test_however_much_ended_long_ago_a_cluster_can_fill_up_again() -> None:
    turnover = Turnover()
    for _ in range(100_000):
        turnover.ended(8000)
    for _ in range(2000):
        turnover.started(1000)
    assert turnover.weights == FILLING
