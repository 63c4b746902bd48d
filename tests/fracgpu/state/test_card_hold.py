"""Whose slices a card takes that a Move frees, phase by phase."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.state.allocation import Slice
from fracgpu.state.card_hold import CardHold, held_cards, hold_of
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import RESERVING, MovePhase
from fracgpu.state.reservation import claims_of
from fracgpu.units import Mib
from tests.support.core import a_record
from tests.support.moves import RESERVED_UNTIL, a_beneficiary, move_of
from tests.support.rebalancing import a_node

_BEFORE = RESERVED_UNTIL - timedelta(seconds=1)
_SLICE = Slice(card=CardUuid("GPU-x"), mib=Mib(1000))
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


def test_a_hold_keeps_cpu_and_memory_for_the_pod_as_well() -> None:
    hold = hold_of(move_of(beneficiary=a_beneficiary(cpu_milli=4000, memory_mib=512)))
    assert hold is not None
    assert hold.host == HostResources(cpu_milli=4000, memory_mib=512)


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


def test_a_hold_is_part_of_what_a_move_claims_and_closes_cards_in_the_ledger() -> None:
    ledger = Ledger()
    ledger.set_node(a_node("node-1", "GPU-source", "GPU-idle", "GPU-other"))
    move = move_of(beneficiary=a_beneficiary("GPU-source", "GPU-idle"))

    def kept() -> dict[str, str]:
        info = ledger.node("node-1", now=_BEFORE)
        assert info is not None
        return {uuid: card.kept_for for uuid, card in info.cards.items() if card.kept_for}

    assert kept() == {}
    ledger.set_claims(claims_of(move))
    assert claims_of(move).hold == hold_of(move)
    assert kept() == {"GPU-source": "uid-big", "GPU-idle": "uid-big"}
    assert "node-1" in ledger.take_changed(now=_BEFORE)

    bound = replace(a_record("uid-big"), node="elsewhere", assignment={"main": (_SLICE,)})
    ledger.set_pod(bound)
    assert kept() == {}
    assert "node-1" in ledger.take_changed(now=_BEFORE)
    ledger.remove_pod("uid-big")
    assert len(kept()) == 2
    ledger.remove_move(move.name)
    assert kept() == {}


def test_a_hold_and_an_assumption_lapse_in_the_ledger_by_themselves() -> None:
    ledger = Ledger()
    ledger.set_node(a_node("node-1", "GPU-source"))
    move = move_of(phase=MovePhase.DONE, beneficiary=a_beneficiary())
    ledger.set_claims(claims_of(move))
    until = _BEFORE - timedelta(minutes=1)
    ledger.take_changed(now=_BEFORE)
    ledger.assume(a_record("uid-big"), node="node-2", assignment={"main": (_SLICE,)}, until=until)
    assert "node-1" in ledger.take_changed(now=until - timedelta(seconds=1))

    def kept(moment: datetime) -> bool:
        info = ledger.node("node-1", now=moment)
        assert info is not None
        return bool(info.cards[CardUuid("GPU-source")].kept_for)

    assert not kept(until - timedelta(seconds=1))
    assert kept(until)
    assert not kept(RESERVED_UNTIL)


def test_a_node_is_opened_only_for_the_pod_that_cards_are_kept_for() -> None:
    ledger = Ledger()
    ledger.set_node(a_node("node-1", "GPU-source"))
    ledger.set_claims(claims_of(move_of(beneficiary=a_beneficiary())))
    info = ledger.node("node-1", now=_BEFORE)
    assert info is not None
    assert info.opened_for("another") is info
    assert not info.opened_for("uid-big").cards[CardUuid("GPU-source")].kept_for


@pytest.mark.parametrize("phase", [phase for phase in MovePhase if phase not in _NO_ROOM])
def test_a_hold_that_was_ended_is_over_whatever_the_phase(phase: MovePhase) -> None:
    move = move_of(phase=phase, reserved_until=RESERVED_UNTIL, beneficiary=a_beneficiary())
    ended = structs.replace(move, status=structs.replace(move.status, held_until=_BEFORE))

    hold = hold_of(ended)

    assert hold is not None
    assert hold.until == _BEFORE
    assert held_cards([hold], now=_BEFORE) == {}
