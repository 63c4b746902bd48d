"""Records of moves: allowed transitions, what budgets count, and how long they are kept."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import ENDED, UNDER_WAY, Ending
from fracgpu.state.move_object import MoveMode, MovePhase
from rebalancer.moves.record import NEXT, MoveRecord, a_replacement, outlived
from tests.fakes.clock import NOON
from tests.support.rebalancing import a_move
from tests.support.records import a_record

THERE = a_replacement("pod-y", "uid-y", node="n2", card=CardUuid("GPU-x"))


def test_every_phase_has_its_row_and_the_last_ones_lead_nowhere() -> None:
    assert set(NEXT) == set(MovePhase)
    assert all(not NEXT[phase] for phase in ENDED)
    assert all(NEXT[phase] for phase in set(MovePhase) - ENDED)


def test_an_illegal_step_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="Planned -> Evicted"):
        a_record().to(MovePhase.EVICTED, now=NOON)


def test_a_step_begins_a_phase_afresh() -> None:
    later = NOON + timedelta(minutes=1)
    stuck = a_record(MovePhase.EVICTING, attempts=3, retry_at=later, message="blocked")

    went_on = stuck.to(MovePhase.EVICTED, now=later)

    assert (went_on.attempts, went_on.retry_at, went_on.phase_since) == (0, None, later)
    assert went_on.detail == ""
    assert went_on.planned_at == NOON
    assert went_on.first_in(MovePhase.EVICTED) == later
    assert went_on.first_in(MovePhase.VERIFYING) is None


@pytest.mark.parametrize(
    ("phase", "ending", "last"),
    [
        (MovePhase.PLANNED, Ending.OUTDATED, MovePhase.ABORTED),
        (MovePhase.PLANNED, Ending.DRY_RUN, MovePhase.DONE),
        (MovePhase.NOTICED, Ending.EXPIRED, MovePhase.ABORTED),
        (MovePhase.ROLLING_BACK, Ending.NOT_READY, MovePhase.ABORTED),
        (MovePhase.EVICTING, Ending.BLOCKED, MovePhase.ABORTED),
        (MovePhase.EVICTED, Ending.LOST, MovePhase.ABORTED),
        (MovePhase.VERIFYING, Ending.RELIEVED, MovePhase.DONE),
        (MovePhase.VERIFYING, Ending.USELESS, MovePhase.DONE),
    ],
)
def test_a_move_ends_as_done_or_aborted(phase: MovePhase, ending: Ending, last: MovePhase) -> None:
    ended = a_record(phase).ended(ending, now=NOON, detail="why")

    assert (ended.phase, ended.ending, ended.detail) == (last, ending, "why")


@pytest.mark.parametrize("phase", MovePhase)
def test_budgets_see_what_is_under_way_what_was_useless_and_whom_it_disturbed(
    phase: MovePhase,
) -> None:
    past = a_record(phase, result=Ending.USELESS.value, replacement=THERE).past()

    assert past.under_way is (phase in UNDER_WAY)
    assert (past.ended_at is not None) is (phase in ENDED)
    assert past.useless
    assert past.landed == "GPU-x"
    assert past.disturbed is (phase in (MovePhase.SURGING, MovePhase.EVICTING))
    assert (past.phase, past.mode) == (phase, MoveMode.SURGE)
    assert (past.ending is not None) is (phase in ENDED)


def test_whom_a_move_disturbed_stays_known_after_its_end() -> None:
    evicting = a_record(MovePhase.EVICTING)

    assert evicting.ended(Ending.BLOCKED, now=NOON).past().disturbed
    assert not a_record().ended(Ending.EXPIRED, now=NOON).past().disturbed


def test_a_move_without_a_status_is_planned_since_it_was_created() -> None:
    """The process died between the two writes."""
    record = a_record(created=NOON).with_status(phase_since=None, transitions=())

    assert (record.phase, record.planned_at, record.phase_since) == (MovePhase.PLANNED, NOON, NOON)


def test_a_replacement_that_is_ready_by_turns_does_not_make_the_object_grow() -> None:
    record = a_record(MovePhase.SURGING)
    for _ in range(100):
        record = record.to(MovePhase.REPLACEMENT_READY, now=NOON)
        record = record.to(MovePhase.SURGING, now=NOON + timedelta(hours=1))

    assert len(record.status.transitions) == 32
    assert record.first_in(MovePhase.SURGING) == NOON
    assert record.disturbed


@given(st.text(max_size=3000))
def test_a_message_is_no_longer_than_the_schema_allows(text: str) -> None:
    record = a_record().ended(Ending.REFUSED, now=NOON, detail=text)

    assert record.detail == text[:1024]
    assert record.with_status(message=text).detail == text[:1024]


def test_the_name_of_a_move_sorts_by_time_and_says_which_pod() -> None:
    assert a_record(move=a_move(pod_uid="0B7F9C21-77")).id == "20260105-120000-0b7f9c21"


def test_a_week_is_kept_a_thousand_at_most_and_what_is_not_over_for_ever() -> None:
    def ended(days: float, uid: str = "u") -> MoveRecord:
        when = NOON - timedelta(days=days)
        return a_record(MovePhase.DONE, move=a_move(pod_uid=uid), now=when, phase_since=when)

    old = a_record(MovePhase.EVICTED, now=NOON - timedelta(days=9))

    assert outlived([ended(8), ended(6), old], now=NOON) == [ended(8)]
    many = [ended(1 + number / 10_000, f"{number:08}") for number in range(1003)]
    forgotten = outlived([*many, old], now=NOON)
    assert forgotten == [many[1002], many[1001], many[1000], many[999]]
