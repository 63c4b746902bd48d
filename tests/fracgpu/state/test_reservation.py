"""What a Move keeps on cards, phase by phase."""

from dataclasses import replace

import pytest

from fracgpu.state.allocation import CardAllocation
from fracgpu.state.move_object import MovePhase
from fracgpu.state.reservation import reservation_of, source_denial_of
from fracgpu.units import Mib
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
