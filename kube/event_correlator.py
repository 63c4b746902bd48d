"""Which events to write, which to count up and which to drop, as client-go does it for others.

Without this a condition that lasts would fill etcd with one object for each time it is seen. The
figures are those of k8s.io/client-go/tools/record/events_cache.go.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

_MOST_REMEMBERED: Final = 4096
_SAME_WITHIN: Final = timedelta(seconds=600)
_BURST: Final = 25.0  # events about one object, then
_REFILL_S: Final = 300.0  # one in this time

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEvent:
    """An event that exists, and how often it was counted."""

    namespace: str
    name: str
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    tokens: float
    at: datetime


class EventCorrelator:
    """Remembers what was written of late; bounded, and lost with the process."""

    def __init__(self) -> None:
        self._written: OrderedDict[Hashable, WrittenEvent] = OrderedDict()
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def admits(self, regarding: Hashable, *, now: datetime) -> bool:
        """Report whether one more event about this object may be written now."""
        bucket = self._buckets.get(regarding) or _Bucket(tokens=_BURST, at=now)
        refilled = max(0.0, (now - bucket.at).total_seconds()) / _REFILL_S
        tokens = min(_BURST, bucket.tokens + refilled)
        admitted = tokens >= 1
        _remember(
            self._buckets, regarding, _Bucket(tokens=tokens - 1 if admitted else tokens, at=now)
        )
        return admitted

    def same(self, event: Hashable, *, now: datetime) -> WrittenEvent | None:
        """Return the event to count up instead of writing an equal one; None if there is none."""
        found = self._written.get(event)
        if found is None or now - found.last_at > _SAME_WITHIN:
            return None
        return found

    def written(self, event: Hashable, *, namespace: str, name: str, now: datetime) -> None:
        """Remember a new event."""
        found = WrittenEvent(namespace=namespace, name=name, count=1, last_at=now)
        _remember(self._written, event, found)

    def counted(self, event: Hashable, *, now: datetime) -> None:
        """Remember that an event was counted up."""
        found = self._written[event]
        _remember(self._written, event, replace(found, count=found.count + 1, last_at=now))

    def forget(self, event: Hashable) -> None:
        """Forget an event that is gone: events expire after an hour by default."""
        self._written.pop(event, None)


def _remember(entries: OrderedDict[Hashable, _V], key: Hashable, value: _V) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > _MOST_REMEMBERED:
        entries.popitem(last=False)
