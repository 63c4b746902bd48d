"""Placements that count although no informer has shown them yet, and how each is settled.

An assumption is dropped only on proof: the pod seen bound, seen gone, or its Binding refused. An
answer that never came proves nothing, so then the pod is looked up; one that is not bound is marked
(:mod:`scheduler.cache.pod_marker`), after which its Binding cannot land any more. While the API
server is silent the assumption stays: unknown is not free.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError, NotFound
from kube.kinds import PODS, Kind
from process.clock import Clock
from scheduler.cache.event_handlers import decode_pod
from scheduler.cache.pod_marker import PodMarker

log = structlog.get_logger()

_TICK_S: Final = 1.0


class PodReader(Protocol):
    """The one verb that looking up needs of the API server."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionTimeouts:
    """How long to wait, in seconds; each longer than the one before.

    Attributes:
        request_s: one request to the API server.
        check_s: an assumption not confirmed after this is looked up.
        lapse_s: an assumption whose pod stays unbound, and cannot be marked, lapses after this.
    """

    request_s: float = 4.0
    check_s: float = 10.0
    lapse_s: float = 60.0


async def read_now(api: PodReader, namespace: str, name: str, *, limit_s: float) -> PodInfo | None:
    """Read a pod from the API server itself; None when there is none.

    Raises:
        KubeError: it did not say.
        TimeoutError: it did not say in time.
        ValueError: what it sent is no pod.
    """
    try:
        async with asyncio.timeout(limit_s):
            return decode_pod(await api.get(PODS, name, namespace=namespace))
    except NotFound:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    record: PodRecord
    node: str
    assignment: Assignment
    since_s: float


class Assumptions:
    """The ledger's assumptions, each with what is needed to look it up."""

    def __init__(
        self,
        api: PodReader,
        ledger: Ledger,
        clock: Clock,
        *,
        marker: PodMarker,
        times: AssumptionTimeouts,
        on_lapse: Callable[[], None],
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._clock = clock
        self._marker = marker
        self._times = times
        self._on_lapse = on_lapse
        self._watched: dict[str, _Watched] = {}

    def count(self, record: PodRecord, *, node: str, assignment: Assignment) -> None:
        """Count a placement from now on, before its Binding is written."""
        self._put(
            _Watched(
                record=record, node=node, assignment=assignment, since_s=self._clock.monotonic()
            )
        )

    def count_bound(self, record: PodRecord) -> None:
        """Count a pod that the API server shows bound, until the informer shows it too.

        The ledger is not told this as a fact: the informer's older news may still be on its way.
        """
        if record.live and record.node and record.assignment is not None:
            self.count(record, node=record.node, assignment=record.assignment)

    def forget(self, uid: str) -> None:
        """Drop an assumption that is proved wrong."""
        self._ledger.forget(uid)
        self._watched.pop(uid, None)

    async def expire(self) -> None:
        """Settle assumptions for ever, about once a second."""
        while True:
            await self._clock.sleep(_TICK_S)
            await self.settle()

    async def settle(self) -> None:
        """Look up what is due, and drop what was confirmed or lapsed."""
        for uid in self._ledger.lapse(now=self._clock.now()):
            self._on_lapse()
            it = self._watched.pop(uid, None)
            log.error("assumption_lapsed", uid=uid, pod=it.record.key if it else "")
        assumed = self._ledger.assumed
        self._watched = {uid: it for uid, it in self._watched.items() if uid in assumed}
        now_s = self._clock.monotonic()
        due = [it for it in self._watched.values() if now_s - it.since_s >= self._times.check_s]
        for it in due:
            try:
                found = await read_now(
                    self._api, it.record.namespace, it.record.name, limit_s=self._times.request_s
                )
            except (KubeError, TimeoutError, ValueError) as error:
                log.warning("assumption_unchecked", pod=it.record.key, error=str(error))
                self._postpone_all()
                return
            void = _is_open(found, it.record.uid)
            if void:
                try:
                    found = await self._marker.mark(it.record)
                except (KubeError, TimeoutError, ValueError) as error:
                    log.warning("assumption_unmarked", pod=it.record.key, error=str(error))
                    void = False
            self._settle(it, found, void=void)

    async def void(self, uid: str) -> PodInfo | None:
        """Make an earlier Binding of this pod impossible, if one may be under way still.

        Returns:
            The pod as it stands after that; None where there is no such Binding, or no such pod.

        Raises:
            KubeError: the API server did not say how the pod stands.
            TimeoutError: nor did it in time.
            ValueError: what it sent is no pod.
        """
        it = self._watched.get(uid)
        if it is None or uid not in self._ledger.assumed:
            return None
        found = await self._marker.mark(it.record)
        if self._stands(it):
            self._settle(it, found, void=True)
        return found

    def _stands(self, it: _Watched) -> bool:
        """Whether neither the informer nor another Binding was faster while we asked."""
        uid = it.record.uid
        return self._watched.get(uid) is it and uid in self._ledger.assumed

    def _settle(self, it: _Watched, found: PodInfo | None, *, void: bool) -> None:
        uid = it.record.uid
        if not self._stands(it):
            return
        if found is None or found.record.uid != uid or not found.record.live:
            self.forget(uid)
            log.warning("assumption_settled", pod=it.record.key, as_="gone")
        elif found.record.node:
            self.count_bound(found.record)
            log.warning("assumption_settled", pod=it.record.key, as_="bound")
        elif void:
            self.forget(uid)
            log.warning("assumption_settled", pod=it.record.key, as_="void")
        else:
            # Not bound, but its Binding may still lie in the API server's queue: let it lapse.
            self._watched[uid] = replace(it, since_s=self._clock.monotonic())

    def _postpone_all(self) -> None:
        now_s = self._clock.monotonic()
        for it in tuple(self._watched.values()):
            self._put(replace(it, since_s=now_s))

    def _put(self, it: _Watched) -> None:
        until = self._clock.now() + timedelta(seconds=self._times.lapse_s)
        self._ledger.assume(it.record, node=it.node, assignment=it.assignment, until=until)
        self._watched[it.record.uid] = it


def _is_open(found: PodInfo | None, uid: str) -> bool:
    """Whether this is the pod, and it might be bound yet."""
    if found is None or found.record.uid != uid:
        return False
    return found.record.live and not found.record.node
