"""The inventory tracker: headroom, slots, and health that can recover."""

from contextlib import aclosing
from dataclasses import replace

from deviceplugin.cards.interface import CardList, CardsUnavailableError, DeviceNode
from deviceplugin.node.inventory import Inventory, Judgement, slots
from fracgpu.cards.card import CardUuid, Health
from fracgpu.units import Mib
from simulator.background import background
from tests.deviceplugin.builders import (
    FakeCards,
    a_card,
    a_card_list,
    a_tracker,
    an_inventory,
    facts,
)
from tests.fakes.clock import VirtualClock


def test_a_slot_id_says_nothing_of_a_card() -> None:
    ids = [
        slot.id for slot in slots(an_inventory(a_card("GPU-a"), a_card("GPU-b", index=1)), count=4)
    ]

    assert ids == ["slot-0000", "slot-0001", "slot-0002", "slot-0003"]


def test_slots_stay_healthy_while_one_card_is() -> None:
    mixed = an_inventory(a_card("GPU-a", unhealthy="hot"), a_card("GPU-b", index=1))
    all_unhealthy = an_inventory(a_card("GPU-a", unhealthy="hot"))

    assert {slot.healthy for slot in slots(mixed, count=2)} == {True}
    assert {slot.healthy for slot in slots(all_unhealthy, count=2)} == {False}


def test_device_files_of_a_container_are_its_cards_own_and_the_common_ones() -> None:
    a, b, c = a_card("GPU-a"), a_card("GPU-b", index=1), a_card("AMD-c", index=2)
    common = (DeviceNode(path="/dev/nvidiactl"),)
    other = replace(facts(c), device_nodes=(DeviceNode(path="/dev/dri/renderD128"),))
    listed = (*(replace(facts(card), common_nodes=common) for card in (a, b)), other)
    inventory = Inventory(card_list=CardList(cards=listed))

    assert [node.path for node in inventory.device_nodes((b, a))] == [
        "/dev/nvidia1",
        "/dev/nvidia0",
        "/dev/nvidiactl",
    ]
    assert [node.path for node in inventory.device_nodes((c,))] == ["/dev/dri/renderD128"]


async def test_no_card_is_known_before_it_is_what_is_said_against_it() -> None:
    said: list[Judgement] = []
    tracker = a_tracker(
        FakeCards(a_card("GPU-a")), VirtualClock(), judgement=lambda: said[-1] if said else None
    )
    await tracker.refresh()
    assert (tracker.inventory.cards, tracker.unseen) == ((), tracker.problem)
    assert "not known yet what the node says" in str(tracker.problem)

    for reasons in ({CardUuid("GPU-a"): "XID 79"}, {}):
        said.append(Judgement(reasons=reasons))
        tracker.judge()  # at once, and not when the cards are listed next

        (card,) = tracker.inventory.cards
        assert (card.health_reason, tracker.problem) == ("XID 79" if reasons else "", None)


async def test_headroom_is_taken_off_every_card() -> None:
    tracker = a_tracker(FakeCards(a_card(mib=8000)), VirtualClock(), headroom_mib=Mib(500))

    await tracker.refresh()

    (card,) = tracker.inventory.cards
    assert card.reserved_mib == 500
    assert card.capacity_mib == 7440  # floored to the share granule


async def test_before_the_first_listing_there_is_a_problem_and_no_slot() -> None:
    tracker = a_tracker(FakeCards(a_card()), VirtualClock())

    assert tracker.problem is not None
    assert tracker.slots() == ()


async def test_one_failed_listing_changes_no_health_and_three_do_until_the_driver_is_back() -> None:
    cards = FakeCards(a_card())
    tracker = a_tracker(cards, VirtualClock())
    await tracker.refresh()
    cards.answer = CardsUnavailableError("driver gone")

    health = []
    for _ in range(3):
        await tracker.refresh()
        health.append(tracker.inventory.cards[0].health)

    assert health == [Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY]
    assert tracker.inventory.cards[0].health_reason == "driver gone"
    assert tracker.problem == "driver gone"
    assert {slot.healthy for slot in tracker.slots()} == {False}

    cards.answer = a_card_list(a_card())
    await tracker.refresh()

    assert tracker.inventory.cards[0].health is Health.HEALTHY
    assert {slot.healthy for slot in tracker.slots()} == {True}
    assert tracker.problem is None


async def test_the_number_of_slots_does_not_shrink_with_a_card() -> None:
    cards = FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1))
    tracker = a_tracker(cards, VirtualClock(), slots_per_card=3)
    await tracker.refresh()

    cards.answer = a_card_list(a_card("GPU-a"))
    await tracker.refresh()

    assert len(tracker.inventory.cards) == 1
    assert len(tracker.slots()) == 6


async def test_a_reader_hears_of_changes_and_of_nothing_else() -> None:
    cards, clock = FakeCards(a_card()), VirtualClock()
    cards.answer = CardsUnavailableError("driver gone")
    tracker = a_tracker(cards, clock)
    heard: list[tuple[int, bool]] = []

    async def listen() -> None:
        async with aclosing(tracker.changes()) as changes:
            async for inventory in changes:
                heard.extend([(len(inventory.cards), tracker.lost)])

    async with background(tracker.run(), listen()):
        await clock.advance(25)  # the driver counts as lost, although no card was ever listed
        cards.answer = a_card_list(a_card())
        await clock.advance(30)
        cards.answer = a_card_list(a_card(), a_card("GPU-b", index=1))
        await clock.advance(30)

    assert heard == [(0, False), (0, True), (1, False), (2, False)]
