from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.storage import CompactedError, Key, StaleError, Store

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.storage import Subscription
    from simulator.objects import Json


def a_key(name: str = "a", namespace: str = "default") -> Key:
    return Key("pods", namespace, name)


def an_object(name: str = "a", **parts: Json) -> Json:
    return {"metadata": {"name": name}, **parts}


async def drained(subscription: Subscription) -> list[tuple[str, int]]:
    subscription.end()
    received = []
    while (change := await subscription.next()) is not None:
        received.append((change.type, change.revision))
    return received


def test_every_write_has_a_revision_of_its_own() -> None:
    store = Store()

    first = store.write(a_key("a"), an_object("a"), expected=0)
    second = store.write(a_key("b"), an_object("b"), expected=0)

    assert second.revision == first.revision + 1 == store.revision
    assert second.object["metadata"]["resourceVersion"] == str(second.revision)


def test_a_write_on_an_old_revision_is_stale() -> None:
    store = Store()
    first = store.write(a_key(), an_object(), expected=0)
    store.write(a_key(), an_object(), expected=first.revision)

    for attempt in (0, first.revision):
        with pytest.raises(StaleError):
            store.write(a_key(), an_object(), expected=attempt)
        with pytest.raises(StaleError):
            store.remove(a_key(), an_object(), expected=attempt)


def test_lists_are_sorted_and_may_be_of_one_namespace() -> None:
    store = Store()
    for namespace, name in (("b", "a"), ("a", "b"), ("a", "a")):
        store.write(a_key(name, namespace), an_object(name), expected=0)

    assert [stored.key[1:] for stored in store.list("pods")] == [("a", "a"), ("a", "b"), ("b", "a")]
    assert [stored.key.name for stored in store.list("pods", "a")] == ["a", "b"]
    assert store.list("nodes") == []


async def test_a_subscription_tells_what_was_missed_and_what_comes() -> None:
    store = Store()
    first = store.write(a_key(), an_object(), expected=0)
    second = store.write(a_key(), an_object(), expected=first.revision)
    subscription = store.subscribe("pods", after=first.revision)

    store.write(Key("nodes", "", "n"), an_object("n"), expected=0)
    third = store.remove(a_key(), an_object(), expected=second.revision)

    assert await drained(subscription) == [
        ("MODIFIED", second.revision),
        ("DELETED", third.revision),
    ]


async def test_a_reader_waits_for_the_next_change() -> None:
    store = Store()
    subscription = store.subscribe("pods", after=store.revision)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        reading = group.create_task(subscription.next())
        await asyncio.sleep(0)
        assert not reading.done()
        store.write(a_key(), an_object(), expected=0)

    change = reading.result()
    assert change is not None
    assert change.type == "ADDED"


async def test_ending_subscriptions_wakes_their_readers() -> None:
    store = Store()
    subscription = store.subscribe("pods", after=store.revision)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        reading = group.create_task(subscription.next())
        await asyncio.sleep(0)
        store.end_subscriptions()

    assert reading.result() is None
    assert subscription.ended


def test_forgotten_history_cannot_be_followed() -> None:
    store = Store(history=2)
    first = store.write(a_key("a"), an_object("a"), expected=0)
    for name in "bcd":
        store.write(a_key(name), an_object(name), expected=0)

    with pytest.raises(CompactedError, match=r"too old resource version: 2 \(3\)"):
        store.subscribe("pods", after=first.revision)
    store.subscribe("pods", after=store.revision - 2)


def test_compaction_forgets_everything_up_to_now() -> None:
    store = Store()
    store.write(a_key(), an_object(), expected=0)
    before = store.revision - 1

    store.compact()

    with pytest.raises(CompactedError):
        store.subscribe("pods", after=before)
    store.subscribe("pods", after=store.revision)


async def test_a_reader_that_falls_too_far_behind_is_ended() -> None:
    store = Store(history=20_000)
    subscription = store.subscribe("pods", after=store.revision)
    for number in range(10_001):
        store.write(a_key(str(number)), an_object(str(number)), expected=0)

    received = await drained(subscription)

    assert len(received) == 10_000
    assert subscription.ended


@given(st.lists(st.sampled_from("abc"), max_size=30))
async def test_replaying_the_history_gives_the_present(names: list[str]) -> None:
    store = Store()
    subscription = store.subscribe("pods", after=store.revision)
    for number, name in enumerate(names):
        found = store.get(a_key(name))
        if found is not None and number % 3 == 0:
            store.remove(a_key(name), an_object(name), expected=found.revision)
        else:
            store.write(a_key(name), an_object(name), expected=found.revision if found else 0)

    replayed: dict[str, int] = {}
    subscription.end()
    while (change := await subscription.next()) is not None:
        if change.type == "DELETED":
            del replayed[change.stored.key.name]
        else:
            replayed[change.stored.key.name] = change.revision
    assert replayed == {stored.key.name: stored.revision for stored in store.list("pods")}
