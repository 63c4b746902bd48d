"""The scheduling queue: which pending pod is tried next, and when one that failed is retried."""

from simulator.scheduler.scheduling_queue import SchedulingQueue


def a_queue(*uids: str) -> SchedulingQueue:
    queue = SchedulingQueue()
    for uid in uids:
        queue.add(uid, priority=0)
    return queue


def test_a_refused_pod_waits_for_an_event() -> None:
    queue = a_queue("p")
    queue.refused("p", now_s=0, as_of=queue.event_count)

    assert queue.next(now_s=1) is None
    queue.event()
    assert queue.next(now_s=1) == "p"


def test_an_event_during_the_attempt_counts() -> None:
    queue = a_queue("p")
    as_of = queue.event_count
    queue.event()
    queue.refused("p", now_s=0, as_of=as_of)

    assert queue.next(now_s=0) == "p"


def test_a_refused_pod_waits_no_longer_than_five_minutes() -> None:
    queue = a_queue("p")
    queue.refused("p", now_s=10, as_of=queue.event_count)

    assert queue.wait_s(now_s=10) == 300
    assert queue.next(now_s=310) == "p"


def test_after_an_error_the_pause_doubles_up_to_ten_seconds() -> None:
    queue = a_queue("p")
    pauses = []
    for _ in range(6):
        queue.erred("p", now_s=0)
        queue.event()  # an event does not shorten it
        assert queue.next(now_s=0) is None
        pauses.append(queue.wait_s(now_s=0))

    assert pauses == [1, 2, 4, 8, 10, 10]


def test_a_removed_pod_is_forgotten() -> None:
    queue = a_queue("gone")
    queue.remove("gone")

    assert "gone" not in queue
    assert queue.next(now_s=0) is None
