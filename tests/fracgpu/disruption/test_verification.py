"""A move helped if the source cooled and the heat did not just go elsewhere."""

from fracgpu.disruption.heat import CardReading
from fracgpu.disruption.verification import Verification, verify, verify_room
from tests.support.rebalancing import ACTIVE, a_reading


def check(source: CardReading | None, target: CardReading | None) -> Verification:
    return verify(before_ratio=0.9, pod_ratio=0.4, source=source, target=target, policy=ACTIVE)


def test_a_source_less_busy_by_half_the_pods_use_is_relieved() -> None:
    found = check(a_reading(0.7), a_reading(0.5))

    assert found.relieved
    assert round(found.relief_ratio, 6) == 0.2
    assert found.detail == (
        "the source went from 90% to 70% busy, the replacement's card is 50% busy"
    )


def test_a_source_that_stays_busy_is_not_relieved() -> None:
    assert check(a_reading(0.71), a_reading(0.5)).relieved is False


def test_heat_that_only_went_to_the_target_is_no_relief() -> None:
    assert check(a_reading(0.5), a_reading(0.8)).relieved is False
    assert check(a_reading(0.5), a_reading(0.79)).relieved is True


def test_without_a_trusted_reading_at_both_ends_nobody_knows() -> None:
    unmeasured_source = check(None, a_reading(0.1))
    unmeasured_target = check(a_reading(0.1), None)

    assert unmeasured_source.relieved is None
    assert unmeasured_source.detail == "the source is not measured"
    assert unmeasured_target.relieved is None
    assert unmeasured_target.detail == "the replacement's card is not measured"


def _left_behind(source: CardReading, *, before: float = 1.0, target: float = 0.5) -> bool | None:
    """Return the verdict on a move of the pod "gone", which used 30 % of its card."""
    return verify(
        before_ratio=before,
        pod_ratio=0.3,
        source=source,
        target=a_reading(target),
        policy=ACTIVE,
        pod_uid="gone",
    ).relieved


def test_a_saturated_source_that_its_other_pods_keep_busy_shows_nothing() -> None:
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "c": 0.4})) is None
    # Nobody knows what keeps it busy: the pod that left is no longer there, whatever a window says.
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "gone": 0.4})) is False
    assert _left_behind(a_reading(0.85, pods={"b": 0.85})) is True
    assert _left_behind(a_reading(1.0, pods={"b": 0.5, "c": 0.4}), target=0.9) is False


def test_a_move_off_a_source_that_had_time_left_and_stays_as_busy_was_useless() -> None:
    stays_busy = a_reading(0.9, pods={"b": 0.5, "c": 0.4})

    assert _left_behind(stays_busy, before=0.89) is False
    assert _left_behind(stays_busy, before=0.9) is None


def test_room_was_made_if_the_pod_started_and_the_target_is_not_hot() -> None:
    def found(*, started: bool, target: CardReading | None) -> bool | None:
        return verify_room(started=started, target=target, policy=ACTIVE).relieved

    assert found(started=True, target=a_reading(0.5)) is True
    assert found(started=True, target=a_reading(0.8)) is False
    assert found(started=True, target=None) is None
    assert found(started=False, target=a_reading(0.5)) is False
