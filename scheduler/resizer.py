"""Answers requests to resize a running pod's share: granted on the same card, or refused.

The ledger counts the larger size before it is written, and the Lease names the pod, as for a
Binding: so a write that is late when another replica leads is refused, as that replica has marked
the pod by then. Which size counts is in `fracgpu.state.resize`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from fracgpu import names
from fracgpu.cards.card import CardUuid, Health
from fracgpu.state.allocation import PodRecord, Resize
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.resize import Pending, Refused, answer, is_answered, isolation_of, write_resize
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib
from kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from kube.events import EventLevel, EventRecorder, Regarding
from kube.informer import Change, ChangeType
from kube.kinds import PODS
from kube.leader_election import LeaseLost
from process.clock import Clock, wait_at_most
from scheduler.binding_record import MOST
from scheduler.cache.assumptions import read_now
from scheduler.cache.event_handlers import AnyPod
from scheduler.cache.pod_marker import PodMarker, PodPatcher

log = structlog.get_logger()

_PERIOD_S: Final = 2.0  # of asking again what could not be decided


class Resizer:
    """Answers one pod after the other.

    Args:
        api: reads and patches pods.
        ledger: what is free on each card.
        marker: marks a pod, after which no earlier write of ours takes effect.
        leads: whether this replica may still write.
        record: writes to the Lease which pods are under way.
        recorder: writes Events.
        clock: the time at which cards are evaluated; paces the loop.
        limit_s: timeout of one request to the API server.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: PodPatcher,
        *,
        ledger: Ledger,
        marker: PodMarker,
        leads: Callable[[], bool],
        record: Callable[[], Awaitable[None]],
        recorder: EventRecorder,
        clock: Clock,
        limit_s: float,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._marker = marker
        self._leads = leads
        self._record = record
        self._recorder = recorder
        self._clock = clock
        self._limit_s = limit_s
        self._due: dict[str, PodRecord] = {}
        self._unknown: dict[str, PodRecord] = {}  # those whose last write was not answered
        self._pending: dict[str, str] = {}
        self._wake = asyncio.Event()

    def pod_changed(self, change: Change[AnyPod]) -> None:
        """Take notice of a pod; call it after the cache has it."""
        pod = change.object
        if (
            change.type is not ChangeType.DELETED
            and isinstance(pod, BoundPod)
            and pod.asks_resize
            and not pod.terminating
        ):
            self._due[pod.uid] = PodRecord(uid=pod.uid, namespace=pod.namespace, name=pod.name)
            self._wake.set()
        else:
            self._due.pop(change.uid, None)
            self._pending.pop(change.uid, None)

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            self._wake.clear()
            await self.answer_all()
            if self._due or self._unknown:
                await self._clock.sleep(_PERIOD_S)
            else:
                await wait_at_most(self._clock, self._wake, limit_s=60.0)

    async def answer_all(self) -> None:
        """Answer each pod that asks, once."""
        for record in {**self._unknown, **self._due}.values():
            try:
                if record.uid in self._unknown:
                    await self._settle(record)
                if record.uid in self._due:
                    await self._answer(record)
            except (KubeError, TimeoutError, ValueError, LeaseLost) as error:
                why = str(error) or "the API server does not answer in time"
                log.warning("resize_not_answered", pod=record.key, reason=why)

    async def _answer(self, record: PodRecord) -> None:
        if record.uid in self._ledger.growing:
            return  # the last grant is written, and the informer will show it
        pod = await read_now(self._api, record.namespace, record.name, limit_s=self._limit_s)
        asked = pod.annotations.get(names.RESIZE) if pod is not None else None
        if pod is None or pod.record.uid != record.uid or asked is None or not pod.record.live:
            self._due.pop(record.uid, None)
            return
        answered = is_answered(asked, pod.annotations.get(names.RESIZED))
        if answered or pod.record.assignment is None:
            self._due.pop(record.uid, None)
            return
        known = self._ledger.observed.get(record.uid)
        if known is None or known.by_card != allocation_of(pod.record).by_card:
            return  # the informer has not shown yet what was read
        if len(self._ledger.assumed) >= MOST:
            return  # the Lease could not name it
        await self._decide(pod, asked)

    async def _decide(self, pod: PodInfo, asked: str) -> None:
        record = pod.record
        before = record.resize
        assigned = before.assigned if before is not None else record.assignment or {}
        found = answer(
            asked,
            assigned,
            before,
            isolation=isolation_of(pod.annotations),
            free_mib=lambda card, with_limit: self._free_mib(
                record.node, card, with_limit=with_limit
            ),
        )
        if isinstance(found, Pending):
            if self._pending.get(record.uid) != found.why:
                self._pending[record.uid] = found.why
                await self._say(record, "ResizePending", f"{asked}: {found.why}")
            return
        if isinstance(found, Refused):
            kept = before.granted if before is not None else assigned
            await self._write(pod, write_resize(asked, kept, refused=found.why))
            await self._say(record, "ResizeRefused", f"{asked}: {found.why}")
            return
        # There must be no await since the decision, or a Binding could choose the same MiB.
        resize = before or Resize(
            asked=asked, assigned=assigned, granted=assigned, applied=assigned
        )
        counts = replace(resize, granted=found.assignment).counts
        self._ledger.grow(allocation_of(replace(record, assignment=counts)))
        try:
            await self._record()
            await self._write(pod, write_resize(asked, found.assignment))
        except (Conflict, Forbidden, Invalid, NotFound, LeaseLost):
            self._ledger.keep(record.uid)
            raise
        except BaseException:
            self._unknown[record.uid] = record
            raise
        await self._say(record, "ResizeGranted", f"{asked}: its limit is being set")

    async def _write(self, pod: PodInfo, text: str) -> None:
        """Write the answer, unless the pod has changed since it was read."""
        if not self._leads():
            raise LeaseLost("this replica no longer leads")
        record = pod.record
        # Patching the status does not need the permission to change what a pod runs.
        patch = {
            "metadata": {
                "uid": record.uid,
                "resourceVersion": record.resource_version,
                "annotations": {names.RESIZED: text},
            }
        }
        async with asyncio.timeout(self._limit_s):
            await self._api.patch(
                PODS, record.name, patch, namespace=record.namespace, subresource="status"
            )
        log.info("resize_answered", pod=record.key, uid=record.uid, answer=text)

    async def _settle(self, record: PodRecord) -> None:
        """Find out whether a write that was not answered took effect; afterwards it cannot."""
        found = await self._marker.mark(record)
        del self._unknown[record.uid]
        self._ledger.keep(record.uid)
        if found is not None:
            self._ledger.grow(allocation_of(found.record))

    def _free_mib(self, node: str, card: CardUuid, *, with_limit: bool) -> Mib | None:
        info = self._ledger.node(node, now=self._clock.now())
        found = info.cards.get(card) if info is not None else None
        if info is None or found is None or info.node.problem:
            return None
        if found.card.health is not Health.HEALTHY:
            return None
        free_mib = found.free_mib
        if with_limit:
            free_mib = min(free_mib, found.free_limit_mib)
        # What a Move keeps for a waiting pod is not free.
        return Mib(min(0, free_mib)) if found.kept_for else free_mib

    async def _say(self, record: PodRecord, reason: str, note: str) -> None:
        await self._recorder.emit(
            Regarding.pod(record),
            reason=reason,
            note=f"{names.RESIZE} {note}",
            level=EventLevel.NORMAL if reason == "ResizeGranted" else EventLevel.WARNING,
        )
