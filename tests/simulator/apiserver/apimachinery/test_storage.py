import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.storage import CompactedError, Key, Store, Subscription
from simulator.objects import Json


def a_key(name: str) -> Key:
    return Key("pods", "default", name)


def an_object(name: str) -> Json:
    return {"metadata": {"name": name}}


async def drained(subscription: Subscription) -> list[tuple[str, int]]:
    subscription.end()
    received = []
    while (change := await subscription.next()) is not None:
        received.append((change.type, change.revision))
    return received


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


def test_forgotten_history_cannot_be_followed() -> None:
    store = Store(history=2)
    first = store.write(a_key("a"), an_object("a"), expected=0)
    for name in "bcd":
        store.write(a_key(name), an_object(name), expected=0)

    with pytest.raises(CompactedError, match=r"too old resource version: 2 \(3\)"):
        store.subscribe("pods", after=first.revision)
    store.subscribe("pods", after=store.revision - 2)
