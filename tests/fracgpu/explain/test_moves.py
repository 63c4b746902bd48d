"""What Moves have to do with a card that takes no pod, in words."""

from dataclasses import replace

from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.explain.moves import words_of_hold, words_of_moves
from fracgpu.placement.fit import FitReason
from fracgpu.request.need import Strategy
from fracgpu.state.card_hold import hold_of
from fracgpu.state.cluster_state import ClusterState
from fracgpu.state.reservation import reservation_of
from fracgpu.state.snapshot import CardInfo, Snapshot
from fracgpu.units import Mib
from tests.support.core import a_card
from tests.support.explaining import NOON
from tests.support.moves import a_beneficiary, move_of

CARD = CardInfo(card=a_card("GPU-a"))
HELD = structs.replace(CARD, held_mib=Mib(900), reserved_mib=Mib(800), moves=frozenset({"a", "b"}))


def a_state(*, denied: str = "") -> ClusterState:
    found = [reservation_of(move_of(name)) for name in ("a", "b")]
    return ClusterState(
        snapshot=Snapshot(),
        strategy=Strategy.PACK,
        pods={},
        now=NOON,
        reservations={one.move: one for one in found if one is not None},
        denied=frozenset({CardUuid(denied)} if denied else ()),
    )


def test_what_is_reserved_is_added_to_what_is_missing_with_the_first_replacement() -> None:
    said = "; 800 MiB reserved for the replacement of team-a/web-1 (move a) and 1 more"

    assert words_of_moves(FitReason.TOO_LITTLE_FREE, HELD, a_state()) == said
    assert words_of_moves(FitReason.TOO_FEW_CORES, HELD, a_state()) == said
    assert words_of_moves(FitReason.UNHEALTHY, HELD, a_state()) == ""
    assert words_of_moves(FitReason.TOO_LITTLE_FREE, CARD, a_state()) == ""


def test_a_card_that_the_controller_left_is_said_to_be_closed_to_it() -> None:
    said = " for pods of this controller, one of which was moved off it"

    assert words_of_moves(FitReason.CORDONED, CARD, a_state(denied="GPU-a")) == said
    assert words_of_moves(FitReason.CORDONED, CARD, a_state()) == ""


def test_a_card_that_a_move_reserves_whole_says_for_whom() -> None:
    kept = structs.replace(CARD, kept_for="move-1")
    reservation = reservation_of(move_of())
    assert reservation is not None
    state = replace(a_state(), reservations={"move-1": reservation})

    assert words_of_hold(FitReason.CORDONED, kept, state) == (
        "reserved for the replacement of team-a/web-1 (move move-1)"
    )


def test_a_card_that_is_kept_for_another_pod_says_for_whom_and_by_which_move() -> None:
    kept = structs.replace(CARD, kept_for="uid-big")
    hold = hold_of(move_of("a", beneficiary=a_beneficiary("GPU-a")))
    assert hold is not None
    state = replace(a_state(), holds={"a": hold})

    assert words_of_hold(FitReason.CORDONED, kept, state) == (
        "kept for a waiting pod, for which move a makes room"
    )
    assert words_of_hold(FitReason.CORDONED, kept, a_state()) == "kept for a waiting pod"
    assert words_of_hold(FitReason.CORDONED, CARD, state) == ""
    assert words_of_hold(FitReason.UNHEALTHY, kept, state) == ""
