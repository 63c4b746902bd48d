"""Records of moves: allowed transitions, what budgets count, and JSON round trips."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from rebalancer.moves.record import (
    ENDED,
    NEXT,
    UNDER_WAY,
    Ending,
    MovePhase,
    MoveRecord,
    kept,
    plan_record,
    read_records,
    write_records,
)
from tests.fakes.clock import NOON
from tests.support.rebalancing import a_move


def a_record(phase: MovePhase = MovePhase.PLANNED, **changes: object) -> MoveRecord:
    record = plan_record(a_move(), policy="abc", dry_run=False, now=NOON)
    changed: MoveRecord = replace(record, phase=phase, **changes)  # type: ignore[arg-type]  # as given
    return changed


def test_every_phase_has_its_row_and_the_last_ones_lead_nowhere() -> None:
    assert set(NEXT) == set(MovePhase)
    assert all(not NEXT[phase] for phase in ENDED)
    assert all(NEXT[phase] for phase in set(MovePhase) - ENDED)


def test_an_illegal_step_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="planned -> evicted"):
        a_record().to(MovePhase.EVICTED, now=NOON)


def test_a_step_begins_a_phase_afresh() -> None:
    later = NOON + timedelta(minutes=1)
    stuck = a_record(MovePhase.EVICTING, failures=3, retry_at=later)

    went_on = stuck.to(MovePhase.EVICTED, now=later)

    assert (went_on.failures, went_on.retry_at, went_on.phase_since) == (0, None, later)
    assert went_on.planned_at == NOON


def test_the_records_of_a_day_of_moves_off_large_owners_fit_into_a_config_map() -> None:
    siblings = tuple(f"00000000-0000-0000-0000-{number:012}" for number in range(1000))
    gone = a_record(MovePhase.EVICTING, siblings=siblings).to(MovePhase.EVICTED, now=NOON)
    assert gone.siblings == siblings

    lost = gone.ended(Ending.LOST, now=NOON)
    there = gone.to(MovePhase.VERIFYING, now=NOON)

    assert len(write_records([lost, there] * 72)) < 1 << 20


@pytest.mark.parametrize(
    ("phase", "ending", "last"),
    [
        (MovePhase.PLANNED, Ending.OUTDATED, MovePhase.ABORTED),
        (MovePhase.PLANNED, Ending.DRY_RUN, MovePhase.DONE),
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
def test_budgets_see_what_is_under_way_and_what_was_useless(phase: MovePhase) -> None:
    past = a_record(phase, ending=Ending.USELESS, landed=CardUuid("GPU-x")).past()

    assert past.under_way is (phase in UNDER_WAY)
    assert (past.ended_at is not None) is (phase in ENDED)
    assert past.useless
    assert past.landed == "GPU-x"


@given(
    st.lists(
        st.builds(
            a_record,
            st.sampled_from(MovePhase),
            siblings=st.lists(st.text(max_size=5), max_size=3).map(tuple),
            failures=st.integers(0, 9),
            retry_at=st.none() | st.just(NOON),
            ending=st.none() | st.sampled_from(Ending),
            detail=st.text(max_size=20),
            dry_run=st.booleans(),
        ),
        max_size=5,
    )
)
def test_records_survive_json(records: list[MoveRecord]) -> None:
    assert read_records(write_records(records)) == tuple(records)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "moves": []}', '{"version": 1, "moves": [{"id": "x"}]}'],
)
def test_what_is_no_list_of_records_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - two kinds of it
        read_records(text)


def test_a_day_is_remembered_and_what_is_not_over_for_ever() -> None:
    def ended(hours: float) -> MoveRecord:
        return a_record(MovePhase.DONE, phase_since=NOON - timedelta(hours=hours), id=f"{hours}")

    old = a_record(MovePhase.EVICTED, phase_since=NOON - timedelta(days=9))

    assert kept([ended(26), ended(24), old], now=NOON) == (ended(24), old)
    assert len(kept([ended(1)] * 1500, now=NOON)) == 1000
    assert len(write_records([ended(1)] * 1000)) < 1_000_000  # a ConfigMap's limit is 1 MiB
