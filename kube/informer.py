"""A local copy of a collection that follows the API server and reports changes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from kube.client import KubeClient
from kube.errors import Gone, KubeDecodeError, KubeError, NotFound
from kube.kinds import Kind
from kube.objects import ObjectKey, ObjectList, ObjectMeta, Raw, identity
from kube.retry import RetryPolicy
from kube.watch import EventType, Selection, WatchEvent, WatchLimits, watch

T = TypeVar("T")

_log = structlog.get_logger()
_QUICK_S: Final = 1.0  # an attempt that ends sooner counts as failed
_UNSERVED_PAUSE_S: Final = 5.0  # between two questions whether an optional kind is served now
_TURN_S: Final = 0.002  # then other tasks have theirs
_COMPARED_AT_ONCE: Final = 5_000  # objects; less than a millisecond
_LIMITS: Final = WatchLimits()
_BACKOFF: Final = RetryPolicy(first_pause_s=0.5, longest_pause_s=30.0)


class ChangeType(Enum):
    """What happened to an object, compared with the local copy."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[T]):
    """One object was added, modified or deleted; for DELETED the object is its last known state."""

    type: ChangeType
    key: ObjectKey
    uid: str
    resource_version: str
    object: T


class _Held(msgspec.Struct, Generic[T], gc=False):
    """What is known of one object; of 100,000 of them the garbage collector would look at each.

    Attributes:
        listed: the number of the last list that had it, or after which a watch told of it.
    """

    uid: str
    resource_version: str
    object: T
    listed: int


class _Turn:
    """A turn of the event loop, which long work gives to other tasks after some milliseconds.

    What is done with one of 100,000 objects takes 10 to 70 microseconds, depending on its kind.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ends_s = -math.inf

    async def share(self) -> None:
        """Let other tasks run if this turn has lasted long enough; right at the beginning too."""
        if self._monotonic() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = self._monotonic() + _TURN_S


class Informer(Generic[T]):
    """List, then watch, then list again whenever the watch cannot be resumed.

    Each change is reported once, in order, after the copy has it. What was missed while
    disconnected is found by comparison: nothing is reported twice, and what vanished is
    reported as DELETED. A name that returns with another UID is a DELETED and an ADDED.

    Args:
        client: of the API server.
        kind: what to follow.
        decode: converts the raw JSON of one object. If it raises ValueError, that version of the
            object is dropped, logged and counted, and the last good version stays.
        namespace: one namespace, or None for all.
        label_selector: as in ``kubectl -l``.
        field_selector: as in ``kubectl --field-selector``.
        on_change: called for every change; what it raises ends :meth:`run`.
        optional: the API server may not serve this kind, now or later, as a custom resource whose
            definition is not installed. The copy is then empty, and synced.
        limits: of each watch.
        backoff: pauses between attempts while the API server does not answer.
        monotonic: seconds of a clock that never goes back.

    Attributes:
        failure: why the last list or watch ended, such as a right that is missing; empty if it
            ended as it should.
    """

    def __init__(  # noqa: PLR0913 - one keyword per independent choice
        self,
        client: KubeClient,
        kind: Kind,
        *,
        decode: Callable[[bytes], T],
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[Change[T]], None] | None = None,
        optional: bool = False,
        limits: WatchLimits = _LIMITS,
        backoff: RetryPolicy = _BACKOFF,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._selected = Selection(
            kind=kind,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        self._decode = decode
        self._on_change = on_change
        self._optional = optional
        self._limits = limits
        self._backoff = backoff
        self._monotonic = monotonic
        self._held: dict[ObjectKey, _Held[T]] = {}
        self._objects: dict[ObjectKey, T] = {}
        self._version: str | None = None
        self._lists = 0
        self._synced = asyncio.Event()
        self._contact_at = -math.inf
        self._served: bool | None = None
        self.failure = ""
        self.dropped = 0

    # -- state ---------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether the first list has been read; stays True through an outage."""
        return self._synced.is_set()

    @property
    def problem(self) -> str | None:
        """Why the first list has not been read, for people; None once it is."""
        if self.synced:
            return None
        because = f": {self.failure}" if self.failure else ""
        return f"the API server has not listed {self._selected.kind.plural} yet{because}"

    @property
    def served(self) -> bool:
        """Whether the API server served this kind the last time that we asked; True before."""
        return self._served is not False

    async def wait_synced(self) -> None:
        """Wait for the first list; limit the wait with ``asyncio.timeout``."""
        await self._synced.wait()

    @property
    def last_contact_age_s(self) -> float:
        """Return the seconds since the API server last sent anything; infinite before that.

        On a quiet collection the server sends something once per watch, by ending it
        (:attr:`kube.watch.WatchLimits.server_s`).
        """
        return self._monotonic() - self._contact_at

    def get(self, namespace: str, name: str) -> T | None:
        """Return one object, or None; the namespace is ``""`` for cluster-scoped kinds."""
        return self._objects.get(ObjectKey(namespace, name))

    def items(self) -> Mapping[ObjectKey, T]:
        """Return a read-only live mapping of all objects."""
        return MappingProxyType(self._objects)

    # -- following -----------------------------------------------------------------------------

    def list_again(self) -> None:
        """Make the next :meth:`run` begin with a list; until that is read, it is not synced.

        Call it between two runs. The copy is kept, and only differences are reported.
        """
        self._version = None
        self._synced.clear()

    async def run(self) -> None:
        """Follow the collection until cancelled, through outages of the API server."""
        failures = 0
        while True:
            began = self._monotonic()
            error: KubeError | None = None
            try:
                await self._follow_once()
            except Gone as gone:
                self._version = None
                _log.info("watch_expired", kind=self._selected.kind.plural, error=str(gone))
                error = gone
            except NotFound as missing:
                if self._optional:
                    self._empty(missing)
                    await asyncio.sleep(min(_UNSERVED_PAUSE_S, self._backoff.longest_pause_s))
                    continue
                _log.warning("watch_failed", kind=self._selected.kind.plural, error=str(missing))
                error = missing
            except KubeError as problem:
                if isinstance(problem, KubeDecodeError):
                    # A watch from the same version would send the same line again.
                    self._version = None
                _log.warning("watch_failed", kind=self._selected.kind.plural, error=str(problem))
                error = problem
            self.failure = str(error or "")
            # A server that ends every watch at once must not be called in a tight loop, and one
            # that broke off a long watch has not been failing all that time.
            quick = self._monotonic() - began < _QUICK_S
            failures = (failures if quick else 0) + (1 if quick or error is not None else 0)
            if failures and not (isinstance(error, Gone) and failures == 1):
                await asyncio.sleep(self._backoff.pause_s(failures))

    async def _follow_once(self) -> None:
        version = self._version or await self._relist()
        events = watch(self._client, self._selected, resource_version=version, limits=self._limits)
        async with aclosing(events) as stream:
            async for event in stream:
                self._contact_at = self._monotonic()
                self._take(event)
                self._version = event.resource_version or self._version
        self._contact_at = self._monotonic()  # the server ended the stream

    async def _relist(self) -> str:
        selected = self._selected
        # What vanished is found by the number of the list: a set of all names would grow together
        # with the copy, and each growth of 100,000 entries takes milliseconds.
        self._lists += 1
        version = ""
        pages = self._client.pages(
            selected.kind,
            namespace=selected.namespace,
            label_selector=selected.label_selector,
            field_selector=selected.field_selector,
        )
        async with aclosing(pages) as listing:
            page = await anext(listing, None)
            while page is not None:
                self._contact_at = self._monotonic()
                version = page.resource_version
                page = await self._read_and_fetch(page.items, listing)
        await self._remove_unlisted()
        self._version = version
        self._note_served()
        if not self._synced.is_set():
            self._synced.set()
            _log.info("informer_synced", kind=selected.kind.plural, objects=len(self._held))
        return version

    async def _remove_unlisted(self) -> None:
        vanished: list[ObjectKey] = []
        # Nothing else changes the copy before there is a watch again.
        for at, (key, held) in enumerate(self._held.items()):
            if at % _COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if held.listed != self._lists:
                vanished.append(key)
        turn = _Turn(self._monotonic)
        for key in vanished:
            await turn.share()
            self._remove(key)

    def _empty(self, missing: NotFound) -> None:
        """Drop everything: without its kind there is no object."""
        if self._served is not False:
            _log.warning("kind_not_served", kind=self._selected.kind.plural, error=str(missing))
        self._served = False
        self._version = None
        self._contact_at = self._monotonic()
        for key in list(self._held):
            self._remove(key)
        self._synced.set()

    def _note_served(self) -> None:
        if self._served is False:
            _log.info("kind_served_again", kind=self._selected.kind.plural)
        self._served = True

    async def _read_and_fetch(
        self, items: Sequence[Raw], listing: AsyncGenerator[ObjectList, None]
    ) -> ObjectList | None:
        """Read one page while the server writes the next, which is returned; None after the last.

        Raises:
            KubeError: the next page was refused; this one is read.
        """

        async def fetch() -> ObjectList | KubeError | None:
            # An error as a result: one that a task of a group raises while the group waits for it
            # looks like a cancellation afterwards, before Python 3.13.
            try:
                return await anext(listing, None)
            except KubeError as error:
                return error

        try:
            async with asyncio.TaskGroup() as group:
                coming = group.create_task(fetch(), name="next page")
                await self._read_page(items)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = coming.result()
        if isinstance(found, KubeError):
            raise found
        return found

    async def _read_page(self, items: Sequence[Raw]) -> None:
        turn = _Turn(self._monotonic)
        for raw in items:
            await turn.share()
            try:
                metadata = identity(raw)
            except ValueError as error:
                self._drop(None, error)
                continue
            key = metadata.key
            self._set(key, metadata, raw)
            held = self._held.get(key)
            if held is not None:  # an older version, if this one could not be decoded
                held.listed = self._lists

    def _take(self, event: WatchEvent) -> None:
        if event.metadata is None:
            return
        if event.type is EventType.DELETED:
            self._remove(event.metadata.key, last=event)
        else:
            self._set(event.metadata.key, event.metadata, event.object)

    def _set(self, key: ObjectKey, metadata: ObjectMeta, raw: Raw) -> None:
        held = self._held.get(key)
        if held is not None and held.uid != metadata.uid:
            self._remove(key)
            held = None
        if held is not None and held.resource_version == metadata.resource_version:
            return
        try:
            value = self._decode(bytes(raw))
        except ValueError as error:
            self._drop(metadata, error)
            return
        now = _Held(metadata.uid, metadata.resource_version, value, self._lists)
        self._held[key] = now
        self._objects[key] = value
        self._report(ChangeType.ADDED if held is None else ChangeType.MODIFIED, key, now)

    def _remove(self, key: ObjectKey, *, last: WatchEvent | None = None) -> None:
        held = self._held.pop(key, None)
        self._objects.pop(key, None)
        if held is None:
            return
        if last is not None and last.metadata is not None and last.metadata.uid == held.uid:
            held = self._final(held, last.metadata, last.object)
        self._report(ChangeType.DELETED, key, held)

    def _final(self, held: _Held[T], metadata: ObjectMeta, raw: Raw) -> _Held[T]:
        """Return the state in a DELETED event, or the last known one if it cannot be decoded."""
        try:
            value = self._decode(bytes(raw))
        except ValueError as error:
            self._drop(metadata, error)
            return held
        return _Held(metadata.uid, metadata.resource_version, value, self._lists)

    def _drop(self, metadata: ObjectMeta | None, error: ValueError) -> None:
        self.dropped += 1
        _log.error(
            "object_dropped",
            kind=self._selected.kind.plural,
            object=str(metadata.key) if metadata else None,
            resource_version=metadata.resource_version if metadata else None,
            error=str(error),
        )

    def _report(self, what: ChangeType, key: ObjectKey, held: _Held[T]) -> None:
        if self._on_change is None:
            return
        self._on_change(
            Change(
                type=what,
                key=key,
                uid=held.uid,
                resource_version=held.resource_version,
                object=held.object,
            )
        )
