"""Leader election by a Lease; a leader that cannot renew it in time stops leading.

The rules are those of client-go's leader election: a candidate trusts no clock but its own, so it
waits a whole lease duration from the moment it *observed* the last renewal, and a leader gives up
(``renew_deadline_s``) well before others may take over (``lease_duration_s``).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self

import structlog

from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound
from kube.kinds import LEASES

_log = structlog.get_logger()
_RELEASE_LIMIT_S = 2.0


class Clock(Protocol):
    """The part of a clock that leader election needs; ``process.clock.Clock`` has it."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, /) -> None: ...


class LeaseNotes(Protocol):
    """Annotations that a role keeps on its Lease."""

    def inherit(self, annotations: Mapping[str, str], *, term: str) -> None:
        """Take note of those of the Lease that is about to be acquired, and of its term so far."""

    def annotations(self, *, term: str) -> Mapping[str, str | None]:
        """Return those that the next write has; None for one that it removes."""


class LeaseLost(Exception):  # noqa: N818 - says what happened
    """Leadership is lost: another holds the lease, or it could not be renewed in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDurations:
    """The durations of leader election, in seconds; each well below the one before.

    Attributes:
        duration_s: others may take over this long after they last observed a renewal.
        renew_deadline_s: the holder stops leading this long after its last renewal.
        retry_s: pause between attempts to acquire or renew.
    """

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    @classmethod
    def lasting(cls, duration_s: int) -> Self:
        """Return durations in the proportions of the default ones."""
        return cls(
            duration_s=duration_s, renew_deadline_s=duration_s * 2 / 3, retry_s=duration_s * 2 / 15
        )

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError(f"want 0 < retry_s < renew_deadline_s < duration_s; got {self}")


@dataclass(frozen=True, slots=True)
class _Observed:
    """The newest Lease of another holder, when it was observed, and its duration."""

    resource_version: str
    at_s: float
    lasts_s: float


class LeaderElector:
    """One candidate for one lease.

    Args:
        client: of the API server.
        clock: for times and pauses.
        name: of the Lease.
        namespace: of the Lease.
        identity: unique among candidates and kept across restarts (a pod's name): a restarted
            holder reacquires its own lease at once.
        times: see :class:`LeaseDurations`.
        notes: what each write of the Lease says beside who holds it.

    Attributes:
        failure: why the last attempt to acquire the lease failed, such as a right that is missing;
            empty if the API server answered.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        client: KubeClient,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        identity: str,
        times: LeaseDurations | None = None,
        notes: LeaseNotes | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self.times = times or LeaseDurations()
        self._notes = notes
        self.failure = ""
        self._acquired = asyncio.Event()
        self._lease: dict[str, Any] = {}
        self._observed = _Observed("", -math.inf, 0.0)
        self._renewed_at_s = -math.inf
        self._renewed_at: datetime | None = None
        self._writing = asyncio.Lock()
        self._asked = self._written = 0  # renewals that were asked for, and those that are done

    @property
    def term(self) -> str:
        """Return this candidate's term of leadership; empty before it has acquired the lease.

        Each acquisition begins a new term, also by the identity that held the lease before. Terms
        are unique even if the Lease is deleted and created again.
        """
        return _term(self._lease)

    def still_leader(self, now: datetime | None = None) -> bool:
        """Report whether no other candidate can hold the lease at this moment.

        Check right before every write. Both clocks must agree: the monotonic one stops while a
        machine is suspended, the wall clock may be set back.

        Args:
            now: the wall clock's time in UTC, if the caller has just read it.
        """
        if self._renewed_at is None:
            return False
        wall_s = ((now or self._clock.now()) - self._renewed_at).total_seconds()
        age_s = max(wall_s, self._clock.monotonic() - self._renewed_at_s)
        return age_s < self.times.renew_deadline_s

    @property
    def another_leads(self) -> bool:
        """Whether another candidate's lease is unexpired, so that it cannot be acquired."""
        return self._clock.monotonic() - self._observed.at_s <= self._observed.lasts_s

    async def wait_leading(self) -> None:
        """Wait until this candidate has acquired the lease for the first time."""
        await self._acquired.wait()

    async def run(self) -> None:
        """Acquire the lease, without a time limit; then renew it until it is lost.

        When cancelled the lease is released, so that a successor need not wait for its expiry.

        Raises:
            LeaseLost: leadership is lost; end the process.
        """
        await self.acquire()
        try:
            await self.renew_until_lost()
        finally:
            await self.release()

    async def acquire(self) -> None:
        """Return once this candidate holds the lease, through outages of the API server."""
        while True:
            try:
                async with asyncio.timeout(self.times.renew_deadline_s):
                    acquired = await self._try_acquire()
            except (KubeError, TimeoutError) as error:
                self.failure = str(error) or "the API server did not answer in time"
                _log.warning("lease_not_acquired", lease=self._name, error=self.failure)
            else:
                self.failure = ""
                if acquired:
                    return
            await self._clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Return how long not to look; no longer than to the moment when the lease expires.

        With jitter, as in client-go: candidates that started together drift apart.
        """
        jitter_s = self.times.retry_s * random.uniform(0.05, 0.2)  # noqa: S311
        left_s = self._observed.at_s + self._observed.lasts_s - self._clock.monotonic()
        pause_s = self.times.retry_s
        return (min(pause_s, left_s) if left_s > 0 else pause_s) + jitter_s

    async def renew_until_lost(self) -> None:
        """Renew every ``retry_s``; end only by raising.

        Raises:
            LeaseLost: another holds it, or no renewal succeeded for ``renew_deadline_s``.
        """
        while True:
            await self._clock.sleep(self.times.retry_s)
            try:
                await self.renew()
            except (KubeError, TimeoutError) as error:
                _log.warning("lease_not_renewed", lease=self._name, error=str(error))

    async def renew(self) -> None:
        """Return once a write has succeeded that was begun after this call, with what it notes.

        All who call while one write is under way share the next one. Each write has its whole time,
        however long its caller waited for its turn: with a limit of their own, callers that come
        often would cut off one write after the other, and the lease would be lost.

        Raises:
            LeaseLost: another holds the lease, or may by now.
            KubeError: the API server refused or failed.
            TimeoutError: it did not answer.
        """
        self._asked += 1
        mine = self._asked
        async with self._writing:
            await asyncio.sleep(0)  # whoever calls in the same turn of the event loop joins
            if self._written >= mine:
                return
            if not self.still_leader():
                raise self._lost("it was not renewed in time")
            asked = self._asked
            # Half, so that one hung connection leaves time for a second attempt.
            async with asyncio.timeout(self.times.renew_deadline_s / 2):
                await self._renew()
            self._written = asked

    async def release(self) -> None:
        """Release the lease if this candidate holds it, within 2 s and without raising."""
        held = self.still_leader()
        self._renewed_at = None
        if not held:
            return
        try:
            async with asyncio.timeout(_RELEASE_LIMIT_S), self._writing:
                try:
                    await self._replace_released()
                except Conflict:  # a renewal that the stop cancelled was written all the same
                    await self._look_again()
                    await self._replace_released()
        except (KubeError, TimeoutError, LeaseLost) as error:
            _log.warning("lease_not_released", lease=self._name, error=str(error))
        else:
            _log.info("lease_released", lease=self._name, identity=self.identity)

    async def _replace_released(self) -> None:
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        await self._client.replace(LEASES, self._with_notes(self._lease, spec))

    async def _try_acquire(self) -> bool:
        try:
            found = await self._client.get_object(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            # Deleted while held; the holder may not know it yet, so wait for the expiry.
            return not self.another_leads and await self._write(None)
        return self._may_take(found) and await self._write(found)

    def _may_take(self, found: dict[str, Any]) -> bool:
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") in {None, "", self.identity}:
            return True
        version = found["metadata"]["resourceVersion"]
        if version != self._observed.resource_version:
            # The holder's own duration counts: it may be longer than ours.
            lasts_s = float(spec.get("leaseDurationSeconds") or self.times.duration_s)
            self._observed = _Observed(version, self._clock.monotonic(), lasts_s)
            return False
        return not self.another_leads

    async def _write(self, found: dict[str, Any] | None) -> bool:
        """Acquire the lease if it is still as *found*; return False if another was faster."""
        at, at_s = self._clock.now(), self._clock.monotonic()
        lease = self._ours(found, at=at)
        try:
            if found is None:
                self._lease = await self._client.create(LEASES, lease)
            else:
                self._lease = await self._client.replace(LEASES, lease)
        except Conflict:
            return False
        self._hold(at=at, at_s=at_s)
        _log.info("lease_acquired", lease=self._name, identity=self.identity)
        return True

    def _ours(self, found: dict[str, Any] | None, *, at: datetime) -> dict[str, Any]:
        stamp = micro_time(at)
        lease = found or {"metadata": {"name": self._name, "namespace": self._namespace}}
        before = lease.get("spec") or {}
        transitions = int(before.get("leaseTransitions") or 0)
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.times.duration_s,
            "acquireTime": stamp,
            "renewTime": stamp,
            # Also if the holder had our name: that was another process, and what it sent
            # may still be under way.
            "leaseTransitions": transitions + 1 if found else transitions,
        }
        if self._notes is not None:
            notes = lease["metadata"].get("annotations") or {}
            self._notes.inherit(notes, term=_term(lease) if found else "")
        return self._with_notes(lease, spec)

    def _with_notes(self, lease: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Return a Lease with this spec, and with what is noted now."""
        if self._notes is None:
            return {**lease, "spec": spec}
        metadata = lease["metadata"]
        found = metadata.get("annotations") or {}
        notes = self._notes.annotations(term=_term({"metadata": metadata, "spec": spec}))
        kept = {key: text for key, text in {**found, **notes}.items() if text is not None}
        return {**lease, "metadata": {**metadata, "annotations": kept}, "spec": spec}

    async def _renew(self) -> None:
        try:
            await self._replace()
        except Conflict:
            await self._look_again()
            await self._replace()

    async def _replace(self) -> None:
        # Counted from before the request: others may observe the renewal at any time after that.
        at, at_s = self._clock.now(), self._clock.monotonic()
        spec = {**self._lease["spec"], "renewTime": micro_time(at)}
        try:
            self._lease = await self._client.replace(LEASES, self._with_notes(self._lease, spec))
        except NotFound:
            raise self._lost("the Lease was deleted") from None
        self._hold(at=at, at_s=at_s)

    async def _look_again(self) -> None:
        """Resolve a conflict: our own write with a lost answer, an edit, another holder, a restore.

        With an older version than ours etcd was restored from a backup. A watch then gets nothing
        until the version that it asks for is reached again, so what this process has in memory
        stays as it was; it ends, and the next one lists everything.
        """
        found = await self._client.get_object(LEASES, self._name, namespace=self._namespace)
        holder = (found.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            raise self._lost(f"it is now held by {holder!r}")
        if _term(found) != self.term:
            raise self._lost("another process of the same name has taken it")
        if _is_older(found, than=self._lease):
            raise self._lost("the API server has an older version of it: etcd was restored")
        self._lease = found

    def _hold(self, *, at: datetime, at_s: float) -> None:
        self._renewed_at, self._renewed_at_s = at, at_s
        self._acquired.set()

    def _lost(self, why: str) -> LeaseLost:
        self._renewed_at = None
        _log.error("lease_lost", lease=self._name, identity=self.identity, why=why)
        return LeaseLost(f"lease {self._namespace}/{self._name} of {self.identity!r} lost: {why}")


def _term(lease: dict[str, Any]) -> str:
    if not lease:
        return ""
    return f"{lease['metadata'].get('uid', '')}/{lease['spec'].get('leaseTransitions', 0)}"


def _is_older(lease: dict[str, Any], *, than: dict[str, Any]) -> bool:
    """Report whether a Lease was stored before another; False where versions are no numbers.

    Versions of one resource are numbers that can be compared: apimachinery's
    ``resourceversion.CompareResourceVersion``, since Kubernetes 1.35; with etcd they always were.
    """
    version, ours = (str(body["metadata"]["resourceVersion"]) for body in (lease, than))
    return version.isdecimal() and ours.isdecimal() and int(version) < int(ours)


def micro_time(at: datetime) -> str:
    """Return *at* as ``meta/v1 MicroTime``: RFC 3339, UTC, exactly six fractional digits."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
