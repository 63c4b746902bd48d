"""What a Move keeps on cards, phase by phase."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.errors import WireError
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.move_object import Move, MovePhase
from fracgpu.state.reservation import (
    claims_of,
    read_claims,
    reservation_of,
    source_denial_of,
)
from fracgpu.units import MAX_MIB, Mib
from tests.support.moves import RESERVED_UNTIL, move_of

_RESERVING = {
    MovePhase.PLANNED,
    MovePhase.RESERVED,
    MovePhase.NOTICED,
    MovePhase.SURGING,
    MovePhase.REPLACEMENT_READY,
    MovePhase.EVICTING,
    MovePhase.EVICTED,
}


@pytest.mark.parametrize("phase", MovePhase)
def test_a_move_reserves_its_target_until_the_replacement_runs(phase: MovePhase) -> None:
    assert (reservation_of(move_of(phase=phase)) is not None) == (phase in _RESERVING)


def test_a_reservation_is_what_the_move_says() -> None:
    move = move_of()
    found = reservation_of(move)
    assert found is not None
    assert found.move == move.name
    assert found.owner_uid == move.spec.owner.uid
    assert found.pod_uid == move.spec.pod.uid
    assert (found.node, found.card) == (move.spec.target.node, move.spec.target.card)
    assert found.allocation == CardAllocation(mib=Mib(move.spec.request.mib), slots=1)
    assert found.until == RESERVED_UNTIL


def test_the_status_extends_a_reservation() -> None:
    later = RESERVED_UNTIL.replace(hour=23)
    found = reservation_of(move_of(reserved_until=later))
    assert found is not None
    assert found == replace(found, until=later)


@pytest.mark.parametrize("phase", MovePhase)
def test_the_owner_is_kept_off_the_source_unless_nothing_was_moved(phase: MovePhase) -> None:
    denial = source_denial_of(move_of(phase=phase))
    assert (denial is None) == (phase in (MovePhase.RECOMMENDED, MovePhase.ABORTED))


def body_of(move: Move, **changes: Any) -> bytes:
    """Return a Move as JSON, with some of the spec's members replaced."""
    found = msgspec.to_builtins(move)
    found["spec"] |= changes
    return msgspec.json.encode(found)


def test_a_move_is_read_with_what_it_claims() -> None:
    move = move_of()

    assert read_claims(body_of(move)) == claims_of(move)
    assert claims_of(move).problem == ""


def test_a_time_without_a_zone_is_in_utc() -> None:
    found = read_claims(
        body_of(
            move_of(),
            reservedUntil="2026-01-01T12:10:00",
            sourceDeniedUntil="2026-01-01T12:10:00",
        )
    )

    assert found.reservation is not None
    assert found.denial is not None
    assert found.reservation.until == found.denial.until == RESERVED_UNTIL


@pytest.mark.parametrize(
    "request_",
    [{"mib": -1}, {"mib": 10**30}, {"mib": 1, "cores": 101}, {"mib": 1, "slots": -1},
     {"mib": 1, "slots": 10**6}, {"mib": 1, "limitMib": 10**30}],
)  # fmt: skip
def test_an_amount_that_no_card_has_counts_as_the_whole_card(request_: dict[str, int]) -> None:
    found = read_claims(body_of(move_of(), request=request_))

    assert found.problem
    assert found.reservation is not None
    assert found.reservation.allocation == CardAllocation(mib=MAX_MIB, cores=100)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "Teleport"},
        {"owner": "me"},
        {"request": {"mib": "8Gi"}},
        {"pod": None},
        {"source": 7},
    ],
)
def test_a_move_that_cannot_be_read_keeps_its_whole_target(changes: dict[str, Any]) -> None:
    move = move_of()
    found = read_claims(body_of(move, **changes))

    assert found.problem
    assert found.move == move.name
    assert found.denial is None
    assert found.reservation is not None
    assert (found.reservation.node, found.reservation.card) == (
        move.spec.target.node,
        move.spec.target.card,
    )
    assert found.reservation.allocation.mib == MAX_MIB
    assert found.reservation.until == RESERVED_UNTIL
    assert found.reservation.owner_uid == ""


def test_an_unreadable_move_keeps_its_target_for_as_long_as_nothing_says_when_it_lapses() -> None:
    found = read_claims(body_of(move_of(), reservedUntil="tomorrow"))

    assert found.reservation is not None
    assert found.reservation.until.year == 9999


@pytest.mark.parametrize("phase", MovePhase)
def test_an_unreadable_move_keeps_nothing_once_its_phase_reserves_nothing(phase: MovePhase) -> None:
    found = read_claims(body_of(move_of(phase=phase), mode="Teleport"))

    assert (found.reservation is not None) == (phase in _RESERVING)


def test_a_phase_of_a_later_version_keeps_the_target() -> None:
    found = msgspec.to_builtins(move_of())
    found["status"]["phase"] = "Dreaming"

    claims = read_claims(msgspec.json.encode(found))

    assert claims.problem
    assert claims.reservation is not None


@pytest.mark.parametrize("target", [None, "n", {}, {"node": "n"}, {"node": "n", "card": 7}])
def test_an_unreadable_move_that_names_no_card_keeps_nothing(target: object) -> None:
    found = read_claims(body_of(move_of(), target=target))

    assert found.problem
    assert found.reservation is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"metadata": {}}', b'{"metadata": {"name": 1}}'])
def test_what_has_no_name_is_no_move(body: bytes) -> None:
    with pytest.raises(WireError):
        read_claims(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["pod", "owner", "source", "target", "request", "mode", "reservedUntil"]),
        JSON,
    )
)
def test_whatever_a_move_says_it_never_frees_anything(changes: dict[str, Any]) -> None:
    found = read_claims(body_of(move_of(), **changes))

    reservation = found.reservation
    if reservation is not None:
        assert 0 <= reservation.allocation.mib <= MAX_MIB
        assert 0 <= reservation.allocation.cores <= 100
        assert reservation.allocation.slots >= 0
        assert reservation.until.tzinfo is not None
    elif "target" not in changes:
        assert not found.problem
