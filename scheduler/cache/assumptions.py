"""Assumed placements, which count although no informer has shown them yet.

An assumption is dropped only on proof: the pod was seen bound or deleted, or its Binding was
refused. A missing answer proves nothing, so then the pod is read; if it is not bound it is marked
(:mod:`scheduler.cache.pod_marker`), after which the Binding cannot take effect any more. While the
API server does not answer, the assumption stays: unknown is not free.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.snapshot import allocation_of
from kube.errors import KubeError, NotFound
from kube.kinds import PODS, Kind
from process.clock import Clock
from scheduler.cache.pod_marker import PodMarker

log = structlog.get_logger()

_TICK_S: Final = 1.0


class PodReader(Protocol):
    """What reading a pod needs of the API server."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionTimeouts:
    """Timeouts in seconds, in ascending order.

    Attributes:
        request_s: one request to the API server.
        check_s: the pod of an assumption that is not confirmed after this is read.
        lapse_s: an assumption whose pod stays unbound and cannot be marked expires after this.
    """

    request_s: float = 4.0
    check_s: float = 10.0
    lapse_s: float = 60.0


async def read_now(api: PodReader, namespace: str, name: str, *, limit_s: float) -> PodInfo | None:
    """Return a pod, read from the API server and not from the cache; None if it does not exist.

    Raises:
        KubeError: the API server refused or failed.
        TimeoutError: the API server did not answer in time.
        ValueError: the answer is no pod.
    """
    try:
        async with asyncio.timeout(limit_s):
            return decode_pod_info(await api.get(PODS, name, namespace=namespace))
    except NotFound:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    record: PodRecord
    node: str
    assignment: Assignment
    move: str
    host: HostResources
    since_s: float


class Assumptions:
    """Tracks the ledger's assumptions of Bindings until each is confirmed or dropped.

    Args:
        api: reads pods.
        ledger: has the assumptions.
        clock: the time at which they are evaluated.
        marker: marks a pod.
        times: of requests and assumptions.
        on_lapse: called for each assumption that nothing confirmed or denied in time.
        on_count: called with the UID of each pod whose placement is assumed.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: PodReader,
        ledger: Ledger,
        clock: Clock,
        *,
        marker: PodMarker,
        times: AssumptionTimeouts,
        on_lapse: Callable[[], None],
        on_count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._clock = clock
        self._marker = marker
        self._times = times
        self._on_lapse = on_lapse
        self._on_count = on_count
        self._watched: dict[str, _Watched] = {}

    def count(
        self,
        record: PodRecord,
        *,
        node: str,
        assignment: Assignment,
        move: str = "",
        host: HostResources = NO_HOST_RESOURCES,
    ) -> None:
        """Assume a placement, before its Binding is written.

        Args:
            record: the pod.
            node: its node.
            assignment: its cards.
            move: what the Binding names.
            host: what the pod takes of the node besides cards.
        """
        self._put(
            _Watched(
                record=record,
                node=node,
                assignment=assignment,
                move=move,
                host=host,
                since_s=self._clock.monotonic(),
            )
        )
        self._on_count(record.uid)

    def count_bound(self, pod: PodInfo) -> None:
        """Assume a pod that the API server shows bound, until the informer shows it too.

        It is not added to the ledger as an observed pod: older watch events may still arrive. One
        that is observed already may have been resized since.
        """
        record = pod.record
        self._ledger.grow(allocation_of(record))
        if record.live and record.node and record.assignment is not None:
            self.count(
                record,
                node=record.node,
                assignment=record.assignment,
                move=record.move,
                host=pod.host,
            )

    def under_way(self) -> Iterable[str]:
        """Return the pods of which a write may be under way: Bindings, and resizes of bound pods.

        Of one that is merely nominated none is, nor of one for whose gang room is held, or whose
        claim is not allocated yet.
        """
        yield from tuple(self._watched.keys() & self._ledger.assumed.keys())
        yield from tuple(self._ledger.growing)

    def forget(self, uid: str) -> None:
        """Drop an assumption that has proved wrong."""
        self._ledger.forget(uid)
        self._watched.pop(uid, None)

    async def expire(self) -> None:
        """Settle assumptions about once a second, until cancelled."""
        while True:
            await self._clock.sleep(_TICK_S)
            await self.settle()

    async def settle(self) -> None:
        """Read the pods of unconfirmed assumptions, and drop what is confirmed or has expired."""
        for uid in self._ledger.lapse(now=self._clock.now()):
            watched = self._watched.pop(uid, None)
            if watched is None:
                log.info("nomination_lapsed", uid=uid)
                continue
            self._on_lapse()
            log.error("assumption_lapsed", uid=uid, pod=watched.record.key)
        assumed = self._ledger.assumed
        self._watched = {uid: watched for uid, watched in self._watched.items() if uid in assumed}
        now_s = self._clock.monotonic()
        due = [
            assumption
            for assumption in self._watched.values()
            if now_s - assumption.since_s >= self._times.check_s
        ]
        for assumption in due:
            try:
                found = await read_now(
                    self._api,
                    assumption.record.namespace,
                    assumption.record.name,
                    limit_s=self._times.request_s,
                )
            except (KubeError, TimeoutError, ValueError) as error:
                log.warning("assumption_unchecked", pod=assumption.record.key, error=str(error))
                self._postpone_all()
                return
            void = _is_open(found, assumption.record.uid)
            if void:
                try:
                    found = await self._marker.mark(assumption.record)
                except (KubeError, TimeoutError, ValueError) as error:
                    log.warning("assumption_unmarked", pod=assumption.record.key, error=str(error))
                    void = False
            self._settle(assumption, found, void=void)

    async def void(self, uid: str) -> PodInfo | None:
        """Prevent an earlier Binding of this pod, which may be in flight, from taking effect.

        Returns:
            The pod after that; None if there is no such Binding, or no such pod.

        Raises:
            KubeError: the API server refused or failed.
            TimeoutError: the API server did not answer in time.
            ValueError: the answer is no pod.
        """
        watched = self._watched.get(uid)
        if watched is None or uid not in self._ledger.assumed:
            return None
        found = await self._marker.mark(watched.record)
        if self._stands(watched):
            self._settle(watched, found, void=True)
        return found

    def _stands(self, watched: _Watched) -> bool:
        """Report whether the assumption is still the current one, after awaiting the API server."""
        uid = watched.record.uid
        return self._watched.get(uid) is watched and uid in self._ledger.assumed

    def _settle(self, watched: _Watched, found: PodInfo | None, *, void: bool) -> None:
        uid = watched.record.uid
        if not self._stands(watched):
            return
        if found is None or found.record.uid != uid or not found.record.live:
            self.forget(uid)
            log.warning("assumption_settled", pod=watched.record.key, as_="gone")
        elif found.record.node:
            self.count_bound(found)
            log.warning("assumption_settled", pod=watched.record.key, as_="bound")
        elif void:
            self.forget(uid)
            log.warning("assumption_settled", pod=watched.record.key, as_="void")
        else:
            # Not bound, but the Binding may still be queued in the API server: let it expire.
            self._watched[uid] = replace(watched, since_s=self._clock.monotonic())

    def _postpone_all(self) -> None:
        now_s = self._clock.monotonic()
        for assumption in tuple(self._watched.values()):
            self._put(replace(assumption, since_s=now_s))

    def _put(self, watched: _Watched) -> None:
        until = self._clock.now() + timedelta(seconds=self._times.lapse_s)
        self._ledger.assume(
            watched.record,
            node=watched.node,
            assignment=watched.assignment,
            until=until,
            move=watched.move,
            host=watched.host,
        )
        self._watched[watched.record.uid] = watched


def _is_open(found: PodInfo | None, uid: str) -> bool:
    """Report whether *found* is this pod and may still be bound."""
    if found is None or found.record.uid != uid:
        return False
    return found.record.live and not found.record.node
