"""Whose slices a card takes that a Move frees, phase by phase."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu.state.card_hold import CardHold, held_cards, hold_of
from fracgpu.state.move_object import RESERVING, MovePhase
from tests.support.moves import RESERVED_UNTIL, a_beneficiary, move_of

_BEFORE = RESERVED_UNTIL - timedelta(seconds=1)
_NO_ROOM = {MovePhase.RECOMMENDED, MovePhase.ROLLING_BACK, MovePhase.ABORTED}


def _hold(**changes: Any) -> CardHold:
    hold = hold_of(move_of(beneficiary=a_beneficiary("GPU-source", "GPU-idle"), **changes))
    assert hold is not None
    return hold


def test_a_move_for_its_sources_own_sake_holds_no_card() -> None:
    assert hold_of(move_of()) is None


@pytest.mark.parametrize("phase", MovePhase)
def test_the_cards_are_held_unless_the_moved_pod_stays(phase: MovePhase) -> None:
    hold = hold_of(move_of(phase=phase, beneficiary=a_beneficiary()))
    assert (hold is None) == (phase in _NO_ROOM)


def test_a_hold_is_what_the_move_says() -> None:
    hold = _hold()
    assert (hold.move, hold.pod_uid, hold.node) == ("move-1", "uid-big", "node-1")
    assert hold.cards == {"GPU-source", "GPU-idle"}
    assert hold.until == RESERVED_UNTIL


@pytest.mark.parametrize("phase", MovePhase)
def test_a_hold_lasts_as_long_as_the_move_is_under_way(phase: MovePhase) -> None:
    later = RESERVED_UNTIL + timedelta(minutes=5)
    hold = hold_of(move_of(phase=phase, reserved_until=later, beneficiary=a_beneficiary()))
    if hold is not None:
        assert hold.until == (later if phase in RESERVING else RESERVED_UNTIL)


def test_a_time_without_a_zone_is_utc() -> None:
    naive = RESERVED_UNTIL.replace(tzinfo=None)
    hold = hold_of(move_of(beneficiary=a_beneficiary(held_until=naive)))
    assert hold is not None
    assert hold.until == RESERVED_UNTIL


def test_a_held_card_is_closed_to_every_pod_but_the_beneficiary() -> None:
    hold = _hold()
    assert held_cards([hold], for_pod="another", now=_BEFORE).keys() == hold.cards
    assert held_cards([hold], now=_BEFORE).keys() == hold.cards
    assert not held_cards([hold], for_pod="uid-big", now=_BEFORE)


def test_a_hold_ends_with_its_time_or_when_its_pod_is_placed_anywhere() -> None:
    hold = _hold()
    assert not held_cards([hold], now=RESERVED_UNTIL)
    assert not held_cards([hold], placed=["uid-big"], now=_BEFORE)
    assert held_cards([hold], placed=["another"], now=_BEFORE)
