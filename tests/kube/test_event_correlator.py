"""Which events are new, which are counted up and which are too many."""

from datetime import timedelta

from kube.event_correlator import EventCorrelator
from tests.fakes.clock import NOON


def test_an_equal_event_is_counted_up_for_ten_minutes_after_the_last() -> None:
    correlator = EventCorrelator()
    assert correlator.same("hot", now=NOON) is None
    correlator.written("hot", namespace="ml", name="a.1", now=NOON)

    later = NOON + timedelta(minutes=10)
    found = correlator.same("hot", now=later)
    assert found is not None
    assert (found.namespace, found.name, found.count) == ("ml", "a.1", 1)
    correlator.counted("hot", now=later)
    again = correlator.same("hot", now=later + timedelta(minutes=10))
    assert again is not None
    assert again.count == 2
    assert correlator.same("hot", now=later + timedelta(minutes=11)) is None


def test_an_event_that_is_gone_is_forgotten() -> None:
    correlator = EventCorrelator()
    correlator.written("hot", namespace="ml", name="a.1", now=NOON)

    correlator.forget("hot")

    assert correlator.same("hot", now=NOON) is None


def test_of_one_object_25_events_are_admitted_and_then_one_in_five_minutes() -> None:
    correlator = EventCorrelator()

    assert [correlator.admits("pod", now=NOON) for _ in range(27)] == [True] * 25 + [False] * 2
    assert correlator.admits("other", now=NOON)
    assert not correlator.admits("pod", now=NOON + timedelta(seconds=299))
    assert correlator.admits("pod", now=NOON + timedelta(seconds=301))
    assert not correlator.admits("pod", now=NOON + timedelta(seconds=302))
    assert not correlator.admits("pod", now=NOON - timedelta(hours=1))  # a clock set back


def test_what_is_remembered_is_bounded() -> None:
    correlator = EventCorrelator()
    for number in range(5000):
        correlator.admits(number, now=NOON)
        correlator.written(number, namespace="ml", name=str(number), now=NOON)

    assert correlator.same(0, now=NOON) is None
    assert correlator.same(5000 - 4096, now=NOON) is not None
