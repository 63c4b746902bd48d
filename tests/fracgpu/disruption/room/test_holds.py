"""How long past moves keep cards for pods that wait."""

from datetime import timedelta

import pytest

from fracgpu.disruption.room.prover import held_for
from fracgpu.state.move_object import MovePhase
from tests.fakes.clock import NOON
from tests.support.making_room import begun
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import a_move


@pytest.mark.parametrize("phase", MovePhase)
def test_cards_are_kept_while_the_hold_of_the_move_says_so(phase: MovePhase) -> None:
    soon = a_beneficiary("a0", held_until=NOON + timedelta(minutes=1))
    past = begun(a_move(beneficiary=soon), phase=phase)
    kept = phase not in (MovePhase.RECOMMENDED, MovePhase.ROLLING_BACK, MovePhase.ABORTED)
    assert past.holds_cards(now=NOON) == kept
    assert held_for([past], now=NOON) == ({"a0": "uid-big"} if kept else {})
    assert not begun(a_move(), phase=phase).holds_cards(now=NOON)


def test_a_hold_lapses_once_the_move_has_ended() -> None:
    ended = a_beneficiary("a0", held_until=NOON)
    assert not begun(a_move(beneficiary=ended), phase=MovePhase.DONE).holds_cards(now=NOON)
    assert begun(a_move(beneficiary=ended), phase=MovePhase.EVICTING).holds_cards(now=NOON)
