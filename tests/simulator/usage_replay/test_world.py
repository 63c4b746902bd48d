"""The closed loop: what moves, what that changes, and what is counted."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fracgpu.disruption.change_freeze import ChangeFreeze, parse_schedule
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.request.need import Strategy
from fracgpu.state.move_object import MoveMode
from simulator.usage_replay.recording import Piece
from simulator.usage_replay.world import ReplayedWorld
from tests.fakes.clock import NOON
from tests.support.recorded import REPLICAS, a_piece

POLICY = RebalancerPolicy()
HOT = {REPLICAS[0]: ("n1/0", 0.5), REPLICAS[1]: ("n1/0", 0.45)}


def a_world(policy: RebalancerPolicy | None) -> ReplayedWorld:
    return ReplayedWorld(
        policy, strategy=Strategy.PACK, step_s=60, startup_s=120, hot_ratio=POLICY.hot_ratio
    )


def after(policy: RebalancerPolicy | None, *pieces: Piece) -> ReplayedWorld:
    world = a_world(policy)
    for piece in pieces:
        for _ in world.play(piece):
            pass
    return world


def a_hot_card(frames: int = 180) -> Piece:
    return a_piece(NOON, cards=("n1/0", "n2/0"), pods=HOT, frames=frames)


def test_without_a_policy_what_was_recorded_is_what_is_counted() -> None:
    found = after(None, a_hot_card()).figures

    assert found.moves == 0
    assert found.hot_h == found.contended_h == pytest.approx(3.0)
    assert (found.full_h, found.lost_h) == (0, 0)


@pytest.mark.parametrize("mode", [Mode.ACTIVE, Mode.DRY_RUN, Mode.RECOMMEND])
def test_one_move_cools_the_card_and_no_other_follows(mode: Mode) -> None:
    world = after(replace(POLICY, mode=mode), a_hot_card())

    (move,) = world.moves
    assert move.pod == f"ml/{REPLICAS[1]}"
    assert (move.source, move.target, move.mode) == ("n1/0", "n2/0", MoveMode.SURGE)
    assert NOON + timedelta(minutes=8) <= move.at <= NOON + timedelta(minutes=35)
    assert world.figures.hot_h < 0.6
    assert (world.figures.useless, world.figures.lost_h) == (0, 0)


def test_switched_off_it_moves_nothing_and_paused_it_is_replayed_as_if_it_were_not() -> None:
    assert after(replace(POLICY, mode=Mode.OFF), a_hot_card()).figures.moves == 0
    assert after(replace(POLICY, paused=True), a_hot_card()).figures.moves == 1


def test_freezes_hold_in_a_replay_too() -> None:
    freeze = ChangeFreeze(
        text="0 12 * * *",
        schedule=parse_schedule("0 12 * * *"),
        zone=NOON.tzinfo,  # type: ignore[arg-type]
        duration=timedelta(hours=2),
    )

    (move,) = after(replace(POLICY, change_freezes=(freeze,)), a_hot_card()).moves

    assert move.at >= NOON + timedelta(hours=2)


def test_a_candidate_that_calls_less_hot_moves_less() -> None:
    lazy = replace(POLICY, hot_ratio=0.99)

    assert after(lazy, a_hot_card()).figures.moves == 0


@pytest.mark.parametrize("name", ["web-0", "worker", "job-xxxxx", "web-6d4cf56db6-abcde"])
def test_a_pod_whose_name_is_no_replicas_stays_where_it_is(name: str) -> None:
    pods = {name: ("n1/0", 0.5), f"{name[:-1]}z": ("n1/0", 0.45)}

    assert after(POLICY, a_piece(NOON, cards=("n1/0", "n2/0"), pods=pods, frames=120)).moves == []


def test_work_beyond_a_cards_whole_time_is_lost() -> None:
    world = a_world(None)
    piece = a_piece(NOON, cards=("n1/0",), pods={"a": ("n1/0", 0.7), "b": ("n1/0", 0.8)}, frames=60)
    for _ in world.play(piece):
        pass

    assert world.figures.lost_h == pytest.approx(0.5)
    assert world.figures.full_h == pytest.approx(1.0)


def test_what_a_card_does_beyond_its_pods_stays_with_it() -> None:
    pods = {REPLICAS[0]: ("n1/0", 0.25), REPLICAS[1]: ("n1/0", 0.35)}
    piece = a_piece(NOON, cards=("n1/0", "n2/0"), pods=pods, rest={"n1/0": 0.35}, frames=180)

    world = after(POLICY, piece)

    assert len(world.moves) == 1
    assert 0 < world.figures.hot_h < 1


def test_a_pod_that_ends_is_forgotten_with_what_it_held() -> None:
    later = a_piece(NOON + timedelta(hours=3), cards=("n1/0", "n2/0"), pods={}, frames=10)

    world = after(POLICY, a_hot_card(), later)

    assert world.figures.moves == 1
    assert not world._placed
    assert world._ledger.snapshot(now=NOON).pods == {}


def test_the_same_recording_gives_the_same_moves() -> None:
    assert after(POLICY, a_hot_card()).moves == after(POLICY, a_hot_card()).moves


def test_pieces_of_any_length_give_the_same() -> None:
    whole = a_hot_card()
    halves = [
        replace(whole, frames=whole.frames[:47]),
        replace(whole, frames=whole.frames[47:]),
    ]

    assert after(POLICY, whole).moves == after(POLICY, *halves).moves
    assert after(POLICY, whole).figures == after(POLICY, *halves).figures
