from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

from simulator.apiserver.apimachinery.resources import PODS
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.apiserver.endpoints.watches import WatchOptions, watch
from simulator.objects import Json, decode


def put(store: Store, name: str = "a", **labels: str) -> int:
    key = Key("pods", "default", name)
    found = store.get(key)
    value: Json = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
    return store.write(key, value, expected=found.revision if found else 0).revision


def described(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["resourceVersion"]) for event in events]


async def test_no_bookmark_goes_beyond_a_change_that_is_still_to_be_told() -> None:
    store = Store()
    first = put(store)
    options = WatchOptions(after=first, bookmarks=True, bookmark_every_s=0.01)
    async with aclosing(watch(store, PODS, options)) as lines, asyncio.TaskGroup() as group:
        reading = group.create_task(anext(lines))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, put, store)
        # Both timers are due in the loop's next turn: the bookmark's first, then the change's.
        time.sleep(0.05)  # noqa: ASYNC251 - to hold up the loop is what it is for

        assert described([decode(await reading)]) == [("MODIFIED", str(first + 1))]


async def take(store: Store, count: int, **options: Any) -> list[Json]:
    """Read *count* events, or fewer if the watch ends first."""
    events: list[Json] = []
    async with asyncio.timeout(60), aclosing(watch(store, PODS, WatchOptions(**options))) as lines:
        async for line in lines:
            events.append(decode(line))
            if len(events) == count:
                break
    return events


async def test_a_watch_without_a_version_starts_with_what_is_there() -> None:
    store = Store()
    first, second = put(store, "a"), put(store, "b")

    assert described(await take(store, 2)) == [("ADDED", str(first)), ("ADDED", str(second))]
