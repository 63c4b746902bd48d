"""Python's garbage collector does not delay requests."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from process.memory import freeze_imported, freeze_until
from tests.fakes.clock import VirtualClock


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


class Knot:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


async def test_what_is_listed_until_it_is_done_is_no_longer_walked_and_what_comes_later_is() -> (
    None
):
    clock, done = VirtualClock(), False
    before = gc.get_freeze_count()
    async with asyncio.TaskGroup() as group:
        freezing = group.create_task(freeze_until(lambda: done, clock))
        await clock.advance(0.0)
        listed = [{"n": [number]} for number in range(1_000)]
        await clock.advance(0.2)
        frozen = gc.get_freeze_count()
        assert frozen - before >= len(listed)
        assert not freezing.done()
        done = True
        await clock.advance(0.2)

        assert freezing.done()
    frozen = gc.get_freeze_count()
    later = [{"n": [number]} for number in range(1_000)]
    await clock.advance(1.0)
    assert gc.get_freeze_count() <= frozen
    assert later


def test_what_was_imported_is_no_longer_walked_and_what_nobody_needs_is_freed() -> None:
    knot = weakref.ref(Knot())
    before = gc.get_freeze_count()

    freeze_imported()

    assert knot() is None
    assert gc.get_freeze_count() > before
