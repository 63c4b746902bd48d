"""All objects under one revision counter, and the history that watches are served from."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.objects import Json, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

HISTORY: Final = 10_000  # events kept of each resource; a watch from before them gets 410
BACKLOG: Final = 10_000  # events a slow watcher may fall behind before its watch is ended


class StaleError(Exception):
    """The object is not at the revision that the writer read."""


class CompactedError(Exception):
    """The requested revision is older than the history that is kept."""

    def __init__(self, *, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")


class Key(NamedTuple):
    """Where an object is stored; the namespace is empty for cluster-scoped resources."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version of one object. It is shared: never change ``object`` in place."""

    key: Key
    revision: int
    object: Json
    encoded: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEvent:
    """One write. ``type`` is that of a watch event; ``before`` is the version it replaced."""

    type: str
    stored: Stored
    before: Stored | None

    @property
    def revision(self) -> int:
        return self.stored.revision


class Subscription:
    """The changes of one resource after one revision, complete and in order."""

    def __init__(self, backlog: Iterator[StoreEvent]) -> None:
        self._waiting: deque[StoreEvent] = deque(backlog)
        self._arrived = asyncio.Event()
        self._ended = False
        if self._waiting:
            self._arrived.set()

    @property
    def ended(self) -> bool:
        """Whether no more events will come: the server stops, or this reader is too slow."""
        return self._ended and not self._waiting

    @property
    def caught_up(self) -> bool:
        """Whether all events so far have been read."""
        return not self._waiting

    def push(self, change: StoreEvent) -> None:
        if self._ended:
            return
        if len(self._waiting) >= BACKLOG:
            self.end()
            return
        self._waiting.append(change)
        self._arrived.set()

    def end(self) -> None:
        self._ended = True
        self._arrived.set()

    async def next(self) -> StoreEvent | None:
        """Return the next change, waiting for it; None when there will be none."""
        while not self._waiting:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


class Store:
    """Objects by key. Every write is synchronous, so a reader between awaits sees one state."""

    def __init__(self, *, history: int = HISTORY) -> None:
        self._objects: defaultdict[str, dict[tuple[str, str], Stored]] = defaultdict(dict)
        self._history: defaultdict[str, deque[StoreEvent]] = defaultdict(
            lambda: deque(maxlen=history)
        )
        self._oldest: defaultdict[str, int] = defaultdict(int)
        self._floor = 0
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._revision = 1

    @property
    def revision(self) -> int:
        """The revision of the last write."""
        return self._revision

    def get(self, key: Key) -> Stored | None:
        return self._objects[key.resource].get((key.namespace, key.name))

    def list(self, resource: str, namespace: str | None = None) -> list[Stored]:
        """Return the objects ordered by namespace and name; namespace None means all."""
        found = self._objects[resource]
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def write(self, key: Key, value: Json, *, expected: int) -> Stored:
        """Store *value* if the object is still at revision *expected* (0: does not exist).

        Takes ownership of *value*: the caller must not change it afterwards.

        Raises:
            StaleError: it is at another revision, deleted, or already exists.
        """
        before = self._expect(key, expected)
        stored = self._freeze(key, value)
        self._objects[key.resource][key.namespace, key.name] = stored
        self._publish(
            StoreEvent(type="MODIFIED" if before else "ADDED", stored=stored, before=before)
        )
        return stored

    def remove(self, key: Key, value: Json, *, expected: int) -> Stored:
        """Remove the object; *value* is its last state, as the DELETED event shows it.

        Raises:
            StaleError: it is not at revision *expected*.
        """
        before = self._expect(key, expected)
        last = self._freeze(key, value)
        del self._objects[key.resource][key.namespace, key.name]
        self._publish(StoreEvent(type="DELETED", stored=last, before=before))
        return last

    def _expect(self, key: Key, expected: int) -> Stored | None:
        before = self.get(key)
        if (before.revision if before else 0) != expected:
            raise StaleError(f"{key} is at {before and before.revision}, not at {expected}")
        return before

    def _freeze(self, key: Key, value: Json) -> Stored:
        self._revision += 1
        value["metadata"]["resourceVersion"] = str(self._revision)
        return Stored(key=key, revision=self._revision, object=value, encoded=encode(value))

    def _publish(self, change: StoreEvent) -> None:
        resource = change.stored.key.resource
        history = self._history[resource]
        if len(history) == history.maxlen:
            self._oldest[resource] = history[0].revision
        history.append(change)
        for subscription in self._subscriptions[resource]:
            subscription.push(change)

    def compact(self) -> None:
        """Drop the history, as etcd compaction does every few minutes: older watches get 410."""
        self._history.clear()
        self._floor = self._revision

    def subscribe(self, resource: str, *, after: int) -> Subscription:
        """Return the changes of *resource* that follow revision *after*, as they come.

        Raises:
            CompactedError: some of them have been dropped.
        """
        oldest = max(self._oldest[resource], self._floor)
        if after < oldest:
            raise CompactedError(asked=after, oldest=oldest)
        missed = (change for change in self._history[resource] if change.revision > after)
        subscription = Subscription(missed)
        self._subscriptions[resource].add(subscription)
        return subscription

    def unsubscribe(self, resource: str, subscription: Subscription) -> None:
        self._subscriptions[resource].discard(subscription)

    def end_subscriptions(self, resource: str | None = None) -> None:
        """End every watch at once, or those of one resource."""
        for name, subscriptions in self._subscriptions.items():
            for subscription in subscriptions if resource in (None, name) else ():
                subscription.end()
