"""Cordons and Moves are taints of devices, which only the claim they are for tolerates."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.devices import pool_spec
from fracgpu.device_claims.taints import (
    MOST_TAINTS,
    DeviceTaint,
    kept_for,
    reserved_by,
    taints_change_at,
    taints_of,
)
from fracgpu.state.allocation import PodRecord
from fracgpu.state.move_object import Move, MovePhase
from fracgpu.state.node_info import closed_by
from fracgpu.state.reservation import claims_of
from tests.support.claims import decoded, stored
from tests.support.core import a_card, a_need, a_pod_need
from tests.support.moves import RESERVED_UNTIL, a_beneficiary, move_of

NOW = RESERVED_UNTIL - timedelta(minutes=5)
SOON = NOW + timedelta(minutes=1)
A, B = CardUuid("GPU-a"), CardUuid("GPU-b")
CORDONED = DeviceTaint("fracgpu.io/cordoned")
NODE = NodeCards(node="node-1", cards=(a_card(A), a_card(B, index=1)))
TO_B = move_of(source=("node-2", "GPU-source"), target=("node-1", B))
ROOM_ON_A = move_of("move-2", source=("node-1", A), beneficiary=a_beneficiary(A))


def found(
    node: NodeCards, *moves: Move, consumed: Collection[str] = (), now: datetime = NOW
) -> dict[CardUuid, list[DeviceTaint]]:
    taints = taints_of(node, map(claims_of, moves), consumed=consumed, now=now)
    return {card: list(some) for card, some in taints.items()}


def test_a_cordon_and_a_drained_card_are_taints_and_a_card_to_avoid_is_not() -> None:
    closed = Cordon(card=A, until=SOON, reason="hot")
    avoided = Cordon(card=B, until=SOON, reason="warm", effect=CordonEffect.PREFER_NO_SCHEDULE)

    assert found(replace(NODE, cordons=(closed, avoided))) == {A: [CORDONED]}
    assert found(replace(NODE, cordons=(closed,)), now=SOON) == {}
    assert found(replace(NODE, drained=frozenset({B}))) == {B: [CORDONED]}


def test_cordons_that_cannot_be_read_close_every_card() -> None:
    node = replace(closed_by("node-1", {names.NODE_CORDONS: "{"}), cards=NODE.cards)

    assert found(node) == {A: [CORDONED], B: [CORDONED]}


def test_a_move_closes_its_target_until_its_replacement_is_there() -> None:
    assert found(NODE, TO_B) == {B: [reserved_by("move-1")]}
    assert found(NODE, TO_B, consumed={"move-1"}) == {}
    assert found(NODE, TO_B, now=RESERVED_UNTIL) == {}
    assert found(replace(NODE, node="node-3"), TO_B) == {}
    assert found(NODE, move_of(target=("node-1", B), phase=MovePhase.RECOMMENDED)) == {}


def test_a_move_that_makes_room_keeps_its_cards_for_the_pod_that_waits() -> None:
    assert found(NODE, ROOM_ON_A) == {A: [kept_for("uid-big")]}


def test_a_device_has_no_more_taints_than_the_api_server_takes() -> None:
    moves = [move_of(f"move-{number}", target=("node-1", B)) for number in range(20)]

    assert len(found(NODE, *moves)[B]) == MOST_TAINTS


def test_when_taints_change_by_themselves_is_known() -> None:
    node = replace(NODE, cordons=(Cordon(card=A, until=SOON, reason="hot"),))
    moves = [claims_of(TO_B)]

    assert taints_change_at(node, moves, now=NOW) == SOON
    assert taints_change_at(node, moves, now=SOON) == RESERVED_UNTIL
    assert taints_change_at(node, moves, now=RESERVED_UNTIL) is None


def test_a_taint_of_a_device_never_evicts() -> None:
    spec = pool_spec(
        "node-1", NODE.cards, generation=1, taints={B: [CORDONED, reserved_by("move-1")]}
    )

    first, second = spec["devices"]
    assert "taints" not in first
    assert second["taints"] == [
        {"key": "fracgpu.io/cordoned", "effect": "NoSchedule"},
        {"key": "fracgpu.io/reserved", "value": "move-1", "effect": "NoSchedule"},
    ]


def a_claim(*tolerated: DeviceTaint, name: str = "fracgpu-0123456789") -> DeviceClaim:
    pod = PodRecord(uid="uid-p", namespace="ml", name="p")
    need = a_pod_need(a_need(1000, name="train"))
    return decoded(stored(claim_of(pod, name, need, {"train": [B]}, tolerated=tolerated)))


def test_a_claim_says_which_move_it_is_for() -> None:
    assert a_claim().tolerated == frozenset()
    assert a_claim().move == ""
    claim = a_claim(reserved_by("move-1"))
    assert claim.tolerated == {reserved_by("move-1")}
    assert claim.move == "move-1"
    assert a_claim(kept_for("uid-p")).move == ""
    assert a_claim(kept_for("uid-p")).tolerated == {kept_for("uid-p")}


@pytest.mark.parametrize("name", ["mine", "fracgpu-mine"])
def test_a_claim_that_users_made_is_for_no_move(name: str) -> None:
    assert a_claim(reserved_by("move-1"), name=name).move == ""
