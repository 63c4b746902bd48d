"""Watch streams: the changes after a revision, filtered by one reader's selection.

Source: k8s.io/apiserver pkg/storage/cacher (selection and bookmarks), handlers/watch.go (wire).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery.errors import expired
from simulator.apiserver.apimachinery.request_info import ListSelection
from simulator.apiserver.apimachinery.storage import CompactedError
from simulator.apiserver.endpoints.bodies import encoded, encoded_value
from simulator.objects import Json, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Store, Stored, StoreEvent, Subscription

LONGEST_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """A watch request; ``after`` None starts with a synthetic ADDED for every object."""

    selection: ListSelection = field(default_factory=ListSelection)
    after: int | None = None
    bookmarks: bool = False
    timeout_s: float = LONGEST_S
    bookmark_every_s: float = 10.0


async def watch(
    store: Store, resource: Resource, options: WatchOptions
) -> AsyncGenerator[bytes, None]:
    """Yield one line of JSON per event until the time is up or the server ends all watches."""
    # No await between the list and the subscription, so nothing is missed or sent twice.
    present = _select(store, resource, options.selection) if options.after is None else []
    after = store.revision if options.after is None else options.after
    try:
        subscription = store.subscribe(resource.qualified, after=after)
    except CompactedError as error:
        # As in the real server, the stream opens and its only event is the error.
        yield _line("ERROR", encode(expired(str(error)).body()))
        return
    try:
        for stored in present:
            yield _line("ADDED", encoded(resource, stored))
        async for line in _follow(store, resource, options, subscription):
            yield line
    finally:
        store.unsubscribe(resource.qualified, subscription)


async def _follow(
    store: Store, resource: Resource, options: WatchOptions, subscription: Subscription
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.timeout_s
    while (left_s := deadline - loop.time()) > 0:
        wait_s = min(left_s, options.bookmark_every_s) if options.bookmarks else left_s
        try:
            async with asyncio.timeout(wait_s):
                change = await subscription.next()
        except TimeoutError:
            # A change may have arrived just as the wait ended: a bookmark must not skip it.
            if options.bookmarks and subscription.caught_up:
                yield _bookmark(resource, store.revision)
            continue
        if change is None:
            return
        line = _event(resource, options.selection, change)
        if line is not None:
            yield line


def _select(store: Store, resource: Resource, selection: ListSelection) -> list[Stored]:
    found = store.list(resource.qualified, selection.namespace)
    return [stored for stored in found if selection.matches(stored.object)]


def _event(resource: Resource, selection: ListSelection, change: StoreEvent) -> bytes | None:
    """Return *change* as one selection sees it: an object that stops matching is DELETED."""
    was = change.before is not None and selection.matches(change.before.object)
    now = change.type != "DELETED" and selection.matches(change.stored.object)
    if now:
        return _line("MODIFIED" if was else "ADDED", encoded(resource, change.stored))
    if not was or change.before is None:
        return None
    if change.type == "DELETED":
        return _line("DELETED", encoded(resource, change.stored))
    # The real server sends the last version that matched, at the revision of this change.
    last: Json = {
        **change.before.object,
        "metadata": {
            **change.before.object["metadata"],
            "resourceVersion": str(change.revision),
        },
    }
    return _line("DELETED", encoded_value(resource, last))


def _line(kind: str, value: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), value)


def _bookmark(resource: Resource, revision: int) -> bytes:
    meta: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
    return _line("BOOKMARK", encoded_value(resource, {"metadata": meta}))
