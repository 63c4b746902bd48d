"""What a browser gets."""

import json
from dataclasses import replace
from datetime import timedelta

from fracgpu.cards.annotations import write_cordons, write_used
from fracgpu.cards.card import CardUuid, Cordon, Health
from fracgpu.state.move_object import Move, MoveMeta, MovePhase, MoveStatus, Transition
from fracgpu.units import Mib
from scheduler.page.documents import FilterAnswer, encode, move_document, waiting_document
from tests.fakes.clock import NOON
from tests.support.gpu import some_cards
from tests.support.moves import a_beneficiary, move_of
from tests.support.page import PageCluster


async def test_a_card_shows_its_slices_the_largest_first() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.pod("small", on="n", mib=1000)
    cluster.pod("large", on="n", mib=4000)

    await cluster.board.refresh()

    card = cluster.document("node/n")["cards"][0]
    assert card["slices"] == [
        {"pod": "default/large", "mib": 4000},
        {"pod": "default/small", "mib": 1000},
    ]
    assert (card["mib"], card["heldMib"], card["freeMib"]) == (24_000, 5000, 19_000)


async def test_a_slice_shows_what_its_pod_uses_what_it_may_use_and_whether_it_ends() -> None:
    cluster = PageCluster()
    used = write_used({CardUuid("GPU-n-0"): {"uid-uses": Mib(1300)}})
    cluster.node("n", used=used)
    cluster.pod("uses", on="n", mib=1000)
    cluster.pod("may", on="n", mib=2000, limit_mib=3000)
    cluster.pod("ends", on="n", mib=4000, meta={"deletionTimestamp": "2026-01-05T12:00:00Z"})

    await cluster.board.refresh()

    assert cluster.document("node/n")["cards"][0]["slices"] == [
        {"pod": "default/ends", "mib": 4000, "terminating": True},
        {"pod": "default/may", "mib": 2000, "limitMib": 3000},
        {"pod": "default/uses", "mib": 1000, "usedMib": 1300},
    ]


async def test_heat_that_is_not_known_is_left_out_and_never_zero() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.heat("n", 0.9, 0.0)

    await cluster.board.refresh()

    node = cluster.document("node/n")
    assert [card.get("heat") for card in node["cards"]] == [0.9, 0.0, None, None]
    assert node["heatAt"] == "2026-01-05T12:00:00Z"


async def test_a_cordon_is_shown_until_it_lapses() -> None:
    cluster = PageCluster()
    until = NOON + timedelta(minutes=10)
    cordon = Cordon(card=CardUuid("GPU-n-1"), until=until, reason="hot")
    cluster.node("n", cordons=write_cordons([cordon]))
    await cluster.board.refresh()

    card = cluster.document("node/n")["cards"][1]
    assert card["cordoned"] is True
    assert card["trouble"] == "cordoned until 12:10:00 UTC: hot"
    assert card["until"] == "2026-01-05T12:10:00Z"

    await cluster.advance(600)
    await cluster.board.refresh()

    assert "cordoned" not in cluster.document("node/n")["cards"][1]


async def test_an_unhealthy_card_and_foreign_memory_are_told_of() -> None:
    cluster = PageCluster()
    first, second = some_cards("n", count=2)
    ill = replace(first, health=Health.UNHEALTHY, health_reason="Xid 79")
    cluster.node("n", cards=(ill, second), foreign=json.dumps({"GPU-n-1": 500}))

    await cluster.board.refresh()

    cards = cluster.document("node/n")["cards"]
    assert (cards[0]["unhealthy"], cards[0]["trouble"]) == (True, "unhealthy: Xid 79")
    assert (cards[1]["foreignMib"], cards[1]["freeMib"]) == (500, 23_500)


async def test_an_assignment_that_cannot_be_read_counts_on_every_card() -> None:
    cluster = PageCluster()
    cluster.node("n", cards=some_cards("n", count=2))
    cluster.pod("odd", mib=2000, annotations={"fracgpu.io/assignment": "?"}, nodeName="n")

    await cluster.board.refresh()

    cards = cluster.document("node/n")["cards"]
    assert [card["unplacedMib"] for card in cards] == [2000, 2000]
    assert all("default/odd" in card["trouble"] for card in cards)


async def test_a_card_with_very_many_slices_counts_those_that_it_leaves_out() -> None:
    cluster = PageCluster()
    cluster.node("n", cards=[replace(some_cards("n", count=1)[0], slots=200)])
    for number in range(70):
        cluster.pod(f"p{number}", on="n", mib=100)

    await cluster.board.refresh()

    (card,) = cluster.document("node/n")["cards"]
    assert (len(card["slices"]), card["moreSlices"]) == (64, 6)


async def test_a_reservation_and_a_card_that_is_kept_are_shown() -> None:
    cluster = PageCluster()
    cluster.node("node-1", cards=some_cards("x", count=1))
    cluster.pod("big", namespace="team-b", meta={"uid": "uid-big"})
    later = NOON + timedelta(hours=1)
    cluster.move(
        move_of(
            source=("node-1", "GPU-x-0"),
            target=("node-1", "GPU-x-0"),
            beneficiary=a_beneficiary("GPU-x-0", held_until=later),
            reserved_until=later,
        )
    )

    await cluster.board.refresh()

    (card,) = cluster.document("node/node-1")["cards"]
    assert (card["reservedMib"], card["moves"]) == (8192, ["move-1"])
    assert card["keptFor"] == "team-b/big"


def test_a_move_shows_its_ends_its_reason_and_its_phases() -> None:
    status = MoveStatus(
        phase=MovePhase.SURGING,
        transitions=(Transition(phase=MovePhase.PLANNED, at=NOON, message="hot"),),
    )
    move = Move(
        metadata=MoveMeta(name="m", creation_timestamp=NOON), spec=move_of().spec, status=status
    )

    shown = json.loads(encode(move_document(move)))

    assert shown["source"] == {"node": "node-1", "card": "GPU-source", "index": 0}
    assert shown["target"]["node"] == "node-2"
    assert (shown["phase"], shown["made"]) == ("Surging", "2026-01-05T12:00:00Z")
    assert shown["phases"] == [{"phase": "Planned", "at": "2026-01-05T12:00:00Z", "message": "hot"}]


def test_a_waiting_pod_shows_what_it_asks_for_and_the_last_answer() -> None:
    pod = PageCluster().pod("p", mib=3 * 1024)
    answer = FilterAnswer(at=NOON, nodes=5, fitting=0, reason="too little")

    shown = json.loads(encode(waiting_document(pod, answer)))

    assert shown["asks"] == "train: 3 GiB on 1 card"
    assert shown["answer"] == {
        "at": "2026-01-05T12:00:00Z",
        "nodes": 5,
        "fitting": 0,
        "reason": "too little",
    }


def test_a_text_of_any_length_is_cut() -> None:
    answer = FilterAnswer(at=NOON, nodes=1, fitting=0)
    pod = replace(PageCluster().pod("p"), need=None, need_problem="x" * 100_000)

    assert len(encode(waiting_document(pod, answer))) < 1000
