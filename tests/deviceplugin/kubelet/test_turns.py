"""One start of a set of slots at a time, and none waits for ever."""

import asyncio

import pytest

from deviceplugin.kubelet.turns import BusyError, Turns

S1, S2 = frozenset({"s1"}), frozenset({"s2"})


async def test_a_start_waits_for_another_of_the_same_slots_and_for_no_other() -> None:
    turns, other_has_begun = Turns(), asyncio.Event()
    order: list[str] = []

    async def start(name: str, slot_ids: frozenset[str]) -> None:
        async with turns.turn(slot_ids):
            order.append(name)
            if name == "first":
                await other_has_begun.wait()
            if name == "other":
                other_has_begun.set()

    async with asyncio.TaskGroup() as group:
        for name, slot_ids in (("first", S1), ("second", S1), ("other", S2)):
            group.create_task(start(name, slot_ids))

    assert order == ["first", "other", "second"]


async def test_a_turn_that_lasts_too_long_is_told_and_the_next_one_comes_after_it() -> None:
    turns = Turns(limit_s=0.01)
    async with turns.turn(S1):
        with pytest.raises(BusyError, match=r"still being prepared after 0\.01 s"):
            async with turns.turn(S1):
                pass

    async with turns.turn(S1):
        pass


async def test_a_limit_that_passes_during_a_turn_is_the_starts_own() -> None:
    turns = Turns()

    with pytest.raises(TimeoutError):
        async with turns.turn(S1):
            raise TimeoutError
