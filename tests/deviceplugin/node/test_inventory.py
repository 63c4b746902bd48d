"""The board of cards: headroom, slots, health that falls and rises."""

import asyncio
from contextlib import aclosing

from deviceplugin.cards.interface import CardsUnavailableError, DeviceNode
from deviceplugin.node.inventory import slots
from fracgpu.cards.card import Health
from fracgpu.units import Mib
from tests.deviceplugin.builders import FakeCards, a_board, a_card, a_stock, a_survey
from tests.fakes.clock import VirtualClock


def test_a_slot_id_says_nothing_of_a_card() -> None:
    ids = [it.id for it in slots(a_stock(a_card("GPU-a"), a_card("GPU-b", index=1)), count=4)]

    assert ids == ["slot-0000", "slot-0001", "slot-0002", "slot-0003"]


def test_slots_stay_healthy_while_one_card_is() -> None:
    mixed = a_stock(a_card("GPU-a", sick="hot"), a_card("GPU-b", index=1))
    all_sick = a_stock(a_card("GPU-a", sick="hot"))

    assert {it.healthy for it in slots(mixed, count=2)} == {True}
    assert {it.healthy for it in slots(all_sick, count=2)} == {False}


def test_device_files_of_a_container_are_its_cards_own_and_the_common_ones() -> None:
    a, b = a_card("GPU-a"), a_card("GPU-b", index=1)
    stock = a_stock(a, b, common_nodes=(DeviceNode(path="/dev/nvidiactl"),))

    assert [it.path for it in stock.device_nodes((b,))] == ["/dev/nvidia1", "/dev/nvidiactl"]


async def test_headroom_is_taken_off_every_card() -> None:
    board = a_board(FakeCards(a_card(mib=8000)), VirtualClock(), headroom_mib=Mib(500))

    await board.survey()

    (card,) = board.inventory.cards
    assert card.reserved_mib == 500
    assert card.capacity_mib == 7440  # floored to the share granule


async def test_before_the_first_survey_there_is_a_problem_and_no_slot() -> None:
    board = a_board(FakeCards(a_card()), VirtualClock())

    assert board.problem is not None
    assert board.slots() == ()


async def test_one_failed_survey_changes_no_health_and_three_do() -> None:
    cards = FakeCards(a_card())
    board = a_board(cards, VirtualClock())
    await board.survey()
    cards.answer = CardsUnavailableError("driver gone")

    health = []
    for _ in range(3):
        await board.survey()
        health.append(board.inventory.cards[0].health)

    assert health == [Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY]
    assert board.inventory.cards[0].health_reason == "driver gone"
    assert board.problem == "driver gone"


async def test_health_comes_back_with_the_driver() -> None:
    cards = FakeCards(a_card())
    board = a_board(cards, VirtualClock())
    await board.survey()
    cards.answer = CardsUnavailableError("driver gone")
    for _ in range(3):
        await board.survey()
    assert {it.healthy for it in board.slots()} == {False}

    cards.answer = a_survey(a_card())
    await board.survey()

    assert board.inventory.cards[0].health is Health.HEALTHY
    assert {it.healthy for it in board.slots()} == {True}
    assert board.problem is None


async def test_the_number_of_slots_does_not_shrink_with_a_card() -> None:
    cards = FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1))
    board = a_board(cards, VirtualClock(), slots_per_card=3)
    await board.survey()

    cards.answer = a_survey(a_card("GPU-a"))
    await board.survey()

    assert len(board.inventory.cards) == 1
    assert len(board.slots()) == 6


async def test_a_reader_hears_of_changes_and_of_nothing_else() -> None:
    cards, clock = FakeCards(a_card()), VirtualClock()
    board = a_board(cards, clock)
    heard: list[int] = []

    async def listen() -> None:
        async with aclosing(board.changes()) as changes:
            async for stock in changes:
                heard.extend([len(stock.cards)])

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(board.run()), group.create_task(listen())]
        await clock.advance(30)
        cards.answer = a_survey(a_card(), a_card("GPU-b", index=1))
        await clock.advance(30)
        for task in tasks:
            task.cancel()

    assert heard in ([0, 1, 2], [1, 2])
