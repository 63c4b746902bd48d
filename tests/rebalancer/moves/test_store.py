"""The store of Moves: written through, each locked, and never half parsed."""

from collections.abc import Mapping
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.errors import WireError
from fracgpu.state.move_object import (
    ENDED,
    NEXT,
    UNDER_WAY,
    Ending,
    Move,
    MovePhase,
    decode_move,
    object_of,
)
from kube.client import KubeClient
from kube.errors import Conflict, NotFound
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, MOVES
from rebalancer.moves.store import (
    MoveStore,
    MovesUnreadable,
    outlived,
)
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    a_move,
)
from tests.support.records import a_record, a_replacement

RECORD = a_record()


@pytest.fixture
async def store(kube: KubeClient) -> MoveStore:
    await install_definitions(kube)
    return another(kube)


def another(kube: KubeClient) -> MoveStore:
    return MoveStore(kube)


def same(one: Move, other: Move) -> bool:
    return (one.name, one.spec, one.status) == (other.name, other.spec, other.status)


async def test_what_is_put_is_read_by_the_next_process(kube: KubeClient, store: MoveStore) -> None:
    await store.load()
    assert store.moves == ()
    stored = await store.put(RECORD)
    reserved = stored.to(MovePhase.RESERVED, now=NOON)
    await store.put(reserved)

    second = another(kube)
    await second.load()

    (found,) = second.moves
    assert same(found, reserved)
    shown = await kube.get_object(MOVES, RECORD.name)
    assert shown["status"]["phase"] == "Reserved"


async def test_the_phase_is_shown_from_the_beginning(kube: KubeClient, store: MoveStore) -> None:
    await store.put(RECORD)

    shown = await kube.get_object(MOVES, RECORD.name)

    assert shown["status"]["phase"] == "Planned"


async def test_a_writer_that_did_not_see_the_last_write_conflicts(
    kube: KubeClient, store: MoveStore
) -> None:
    await store.put(RECORD)
    second = another(kube)
    await second.load()
    await second.put(second.moves[0].to(MovePhase.RESERVED, now=NOON))

    with pytest.raises(Conflict):
        await store.put(store.moves[0].to(MovePhase.RESERVED, now=NOON))
    with pytest.raises(Conflict):  # neither may a name be taken twice
        await another(kube).put(RECORD)
    await store.load()
    await store.put(store.moves[0].to(MovePhase.NOTICED, now=NOON))


async def test_a_status_of_another_version_is_not_taken_for_none(
    kube: KubeClient, store: MoveStore
) -> None:
    stored = await store.put(RECORD)
    definition = await kube.get_object(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    schema["properties"]["phase"]["enum"].append("Teleporting")
    await kube.replace(CUSTOM_RESOURCE_DEFINITIONS, definition)
    patch = {"status": {"phase": "Teleporting"}}
    await kube.patch(MOVES, stored.name, patch, subresource="status")

    with pytest.raises(MovesUnreadable, match=f"Move {stored.name}: .*; delete it to forget it"):
        await another(kube).load()


async def test_without_the_definition_nothing_is_known_of_past_moves(kube: KubeClient) -> None:
    with pytest.raises(
        MovesUnreadable, match=r"CustomResourceDefinition moves\.fracgpu\.io is not"
    ):
        await another(kube).load()


async def test_a_move_that_somebody_deleted_is_forgotten(
    kube: KubeClient, store: MoveStore
) -> None:
    stored = await store.put(RECORD)
    await kube.delete(MOVES, RECORD.name)

    with pytest.raises(NotFound):
        await store.put(stored.to(MovePhase.RESERVED, now=NOON))
    await store.load()

    assert store.moves == ()


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

    assert (went_on.status.attempts, went_on.status.retry_at) == (0, None)
    assert went_on.phase_since == later
    assert went_on.status.message == ""
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

    assert (ended.phase, ended.ending, ended.status.message) == (last, ending, "why")


@pytest.mark.parametrize("phase", MovePhase)
def test_budgets_see_what_is_under_way_what_has_ended_and_whom_it_disturbed(
    phase: MovePhase,
) -> None:
    past = a_record(phase, replacement=THERE)

    assert past.under_way is (phase in UNDER_WAY)
    assert (past.ended_at is not None) is (phase in ENDED)
    assert past.landed == "GPU-x"
    assert past.disturbed is (phase in (MovePhase.SURGING, MovePhase.EVICTING))


def test_a_surge_that_is_rolled_back_has_failed_once_it_has_ended() -> None:
    surge = a_record(MovePhase.SURGING)
    undone = surge.to(MovePhase.ROLLING_BACK, now=NOON, result=Ending.NOT_READY.value)

    assert (undone.ending, undone.failed) == (Ending.NOT_READY, False)
    assert undone.ended(Ending.NOT_READY, now=NOON).failed


def test_whom_a_move_disturbed_stays_known_after_its_end() -> None:
    evicting = a_record(MovePhase.EVICTING)

    assert evicting.ended(Ending.BLOCKED, now=NOON).disturbed
    assert not a_record().ended(Ending.EXPIRED, now=NOON).disturbed


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

    assert record.status.message == text[:1024]
    assert record.with_status(message=text).status.message == text[:1024]


def test_the_name_of_a_move_sorts_by_time_and_says_which_pod() -> None:
    assert a_record(move=a_move(pod_uid="0B7F9C21-77")).name == "20260105-120000-0b7f9c21"


def test_a_week_is_kept_a_thousand_at_most_and_what_is_not_over_for_ever() -> None:
    def ended(days: float, uid: str = "u") -> Move:
        when = NOON - timedelta(days=days)
        return a_record(MovePhase.DONE, move=a_move(pod_uid=uid), now=when, phase_since=when)

    old = a_record(MovePhase.EVICTED, now=NOON - timedelta(days=9))

    assert outlived([ended(8), ended(6), old], now=NOON) == [ended(8)]
    many = [ended(1 + number / 10_000, f"{number:08}") for number in range(1003)]
    forgotten = outlived([*many, old], now=NOON)
    assert forgotten == [many[1002], many[1001], many[1000], many[999]]


@given(
    st.sampled_from(MovePhase),
    st.integers(0, 9),
    st.none() | st.just(NOON),
    st.sampled_from(["", *(ending.value for ending in Ending)]),
    st.text(max_size=50),
)
def test_records_survive_json(
    phase: MovePhase, attempts: int, retry_at: object, result: str, message: str
) -> None:
    record = a_record(phase, attempts=attempts, retry_at=retry_at, result=result, message=message)

    body = object_of(record)

    assert decode_move(msgspec.json.encode(body)) == record
    assert body["status"]["phase"] == phase.value


def edited(**status: object) -> Move:
    """Return a record as it is read after people have changed its status."""
    body = object_of(a_record(MovePhase.ABORTED, result=Ending.POD_GONE.value))
    body["status"] |= status
    return decode_move(msgspec.json.encode(body))


def test_an_end_that_this_version_does_not_know_counts_as_a_failure() -> None:
    past = edited(
        result="of-a-later-version", transitions=[{"phase": "Evicting", "at": NOON.isoformat()}]
    )

    assert past.failed


@pytest.mark.parametrize(
    "status",
    [
        {"phaseSince": "2026-01-01T12:00:00"},
        {"phaseSince": None, "transitions": [{"phase": "Aborted", "at": "2026-01-01T12:00:00"}]},
        {"retryAt": "2026-01-01T12:00:00", "heldUntil": "2026-01-01T12:00:00"},
        {"phaseSince": "0001-01-01T00:00:00+14:00"},
        {"phaseSince": "9999-12-31T23:59:59-14:00"},
    ],
)
def test_a_time_that_people_wrote_can_be_compared(status: Mapping[str, object]) -> None:
    moves = [edited(**status), a_record(MovePhase.ABORTED, phase_since=NOON)]

    outlived(moves, now=NOON)
    for move in moves:
        move.age(now=NOON)
        assert move.status.retry_at is None or move.status.retry_at < NOON
    assert len(sorted(move.planned_at for move in moves)) == len(moves)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"metadata": {"name": "x"}, "spec": {}}'])
def test_what_is_no_move_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_move(body)
