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


def test_a_source_that_is_saturated_before_and_after_shows_nothing() -> None:
    def saturated(source: float, target: float) -> bool | None:
        return verify(
            before_ratio=1.0,
            pod_ratio=0.3,
            source=a_reading(source),
            target=a_reading(target),
            policy=ACTIVE,
        ).relieved

    # Its other pods lacked more than the one that left had used: they have it now.
    assert saturated(1.0, 0.5) is None
    assert saturated(0.97, 0.5) is False
    assert saturated(0.85, 0.5) is True
    assert saturated(1.0, 0.9) is False


def test_room_was_made_if_the_pod_started_and_the_target_is_not_hot() -> None:
    def found(*, started: bool, target: CardReading | None) -> bool | None:
        return verify_room(started=started, target=target, policy=ACTIVE).relieved

    assert found(started=True, target=a_reading(0.5)) is True
    assert found(started=True, target=a_reading(0.8)) is False
    assert found(started=True, target=None) is None
    assert found(started=False, target=a_reading(0.5)) is False
