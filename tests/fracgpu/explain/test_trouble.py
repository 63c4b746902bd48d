"""Why nodes and cards take no new slices, in words."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Cordon, Health, NodeCards
from fracgpu.explain.trouble import CardTrouble, card_trouble, node_trouble
from fracgpu.state.snapshot import CardInfo
from fracgpu.units import Mib

CARD: Final = Card(uuid=CardUuid("GPU-a"), index=0, model="A30", total_mib=Mib(24_000), slots=2)
NODE: Final = NodeCards(node="n", cards=(CARD,))
UNTIL: Final = datetime(2026, 1, 5, 13, tzinfo=UTC)


def test_a_node_without_trouble_has_none() -> None:
    assert node_trouble(NODE) == ""
    assert node_trouble(replace(NODE, cards=())) == "has not reported its cards"
    unready = "not ready, or kubelet does not know its node agent"
    assert node_trouble(replace(NODE, schedulable=False)) == unready
    assert node_trouble(replace(NODE, unschedulable=True)) == "cordoned"
    assert node_trouble(replace(NODE, shared=False)) == "does not share its cards"
    assert node_trouble(replace(NODE, unreadable={names.NODE_CARDS: "odd"})) == "odd"


def test_the_gravest_trouble_of_a_card_is_named() -> None:
    cordoned = replace(NODE, cordons=(Cordon(card=CARD.uuid, until=UNTIL, reason="hot"),))
    full = CardInfo(card=CARD, held_slots=2)

    assert card_trouble(CardInfo(card=CARD), NODE, unplaced="") == CardTrouble()
    assert card_trouble(full, NODE, unplaced="").text == "all its slots are taken: 2 of 2"
    unsure = structs.replace(full, unplaced_mib=Mib(5))
    assert card_trouble(unsure, NODE, unplaced="x/y").text == (
        "5 MiB of it may be held by x/y, whose assignment is unreadable"
    )
    assert card_trouble(
        structs.replace(unsure, cordoned=True), cordoned, unplaced="x/y"
    ) == CardTrouble(text="cordoned until 13:00:00 UTC: hot", until=UNTIL, closes=True)
    drained = replace(cordoned, drained=frozenset({CARD.uuid}))
    assert card_trouble(CardInfo(card=CARD, cordoned=True), drained, unplaced="") == CardTrouble(
        text="drained by an administrator", closes=True
    )
    ill = replace(CARD, health=Health.UNHEALTHY, health_reason="Xid 79")
    assert card_trouble(CardInfo(card=ill, cordoned=True), cordoned, unplaced="") == CardTrouble(
        text="unhealthy: Xid 79", until=UNTIL, closes=True
    )
    warm = CardInfo(card=CARD, avoided=True)
    assert card_trouble(warm, cordoned, unplaced="") == CardTrouble(
        text="avoided until 13:00:00 UTC: hot", until=UNTIL
    )
