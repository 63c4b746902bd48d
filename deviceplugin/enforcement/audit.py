"""Proves periodically that every promised limit stands, and repairs what does not."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from deviceplugin.enforcement.interface import EnforcementError, LimitMissingError
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Container
from fracgpu.cards.card import CardUuid
from fracgpu.request.language import wants_kernel
from fracgpu.state.pod_info import PodInfo
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS
from process.clock import Clock

log = structlog.get_logger()

_EVENTS: Final = {
    "LimitRestored": "limit_restored",
    "LimitNotProved": "limit_not_proved",
    "UnlimitedContainerStopped": "unlimited_container_stopped",
}
# Until the cards have been listed, and so what can limit them is known.
_SOON_S: Final = 1.0

Running = Mapping[str, tuple[str, Container]]
"""The node's running containers: id → UID of the pod, and the container."""


@dataclass(slots=True)
class Findings:
    """What one audit found.

    Attributes:
        promised: how many limits were promised.
        restored: by container id, which limits did not stand and were set again.
        unproven: by container id, why a promised limit does not stand.
        missing: how many promised limits do not stand.
        unlimited: those of them that are known to be missing, of pods that run only with limits.
        drifted: how many cgroups above containers kept another amount than those.
    """

    promised: int = 0
    restored: dict[str, str] = field(default_factory=dict)
    unproven: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    unlimited: set[str] = field(default_factory=set)
    drifted: int = 0


def inspect(running: Running, pods: Mapping[str, PodInfo] | None, limiter: Limiter) -> Findings:
    """Read every promised limit back, and set again what does not stand; blocks.

    Args:
        running: the node's running containers.
        pods: this node's pods by UID; None before they have been listed, so that no limit is known.
        limiter: sets and reads.
    """
    found = Findings()
    for container_id, (uid, container) in running.items():
        pod = (pods or {}).get(uid)
        try:
            limits = limiter.limits_of(container, pod)
        except EnforcementError as error:
            found.promised += 1
            found.missing += 1
            found.unproven[container_id] = str(error)
            continue
        for limit in limits:
            found.promised += 1
            try:
                was = limiter.verify(container, limit)
            except EnforcementError as error:
                found.missing += 1
                found.unproven[container_id] = str(error)
                wanted = pod is not None and wants_kernel(pod.annotations)
                if wanted and isinstance(error, LimitMissingError):
                    found.unlimited.add(container_id)
            else:
                if was is not None:
                    found.restored[container_id] = was
    return found


class LimitAudit:
    """Inspects periodically; what it finds is counted, logged and said on the pod.

    Args:
        running: the node's running containers; None before the runtime has named them, when
            nothing above them may be repaired.
        pods: this node's pods by UID; None before they have been listed.
        cards: the node's cards.
        limiter: sets and reads.
        recorder: writes events.
        metrics: counts what is found.
        clock: paces the audits.
        period_s: between two audits.
        on_probed: called after each, when it is known what can limit each card.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        running: Callable[[], Running | None],
        pods: Callable[[], Mapping[str, PodInfo] | None],
        cards: Callable[[], Iterable[CardUuid]],
        limiter: Limiter,
        recorder: EventRecorder,
        metrics: DevicePluginMetrics,
        clock: Clock,
        period_s: float,
        on_probed: Callable[[], None] = lambda: None,
    ) -> None:
        self._running = running
        self._pods = pods
        self._cards = cards
        self._limiter = limiter
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._period_s = period_s
        self._on_probed = on_probed
        self._unproven: Mapping[str, str] = {}
        self._unlimited: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await self.audit()
            self._on_probed()
            known = self._limiter.unlimited is not None
            await self._clock.sleep(self._period_s if known else min(self._period_s, _SOON_S))

    async def audit(self) -> Findings:
        """Audit once."""
        changes = self._limiter.changes
        named, pods = self._running(), self._pods()
        found = await asyncio.to_thread(self._inspect, named, pods, changes)
        running = named or {}
        self._metrics.limits_audited(
            promised=found.promised,
            unproven=found.missing,
            restored=len(found.restored),
            drifted=found.drifted,
        )
        for container_id, was in found.restored.items():
            await self._say(
                running[container_id], pods, "LimitRestored", f"it was set again: {was}"
            )
        for container_id, why in found.unproven.items():
            if self._unproven.get(container_id) != why:
                await self._say(running[container_id], pods, "LimitNotProved", why)
        for container_id in sorted(found.unlimited & self._unlimited):
            await self._stop(running[container_id], pods, found.unproven[container_id])
        self._unproven, self._unlimited = found.unproven, frozenset(found.unlimited)
        return found

    async def _stop(
        self, whose: tuple[str, Container], pods: Mapping[str, PodInfo] | None, why: str
    ) -> None:
        """End a container whose limit two audits in a row found missing, and could not set."""
        try:
            await asyncio.to_thread(self._limiter.stop, whose[1])
        except EnforcementError as error:
            log.warning("container_not_stopped", container=whose[1].name, reason=str(error))
        else:
            await self._say(
                whose, pods, "UnlimitedContainerStopped", f"the container was ended: {why}"
            )

    def _inspect(
        self, running: Running | None, pods: Mapping[str, PodInfo] | None, changes: int
    ) -> Findings:
        self._limiter.refresh()
        if running is None:
            return Findings()
        found = inspect(running, pods, self._limiter)
        containers = [container for _, container in running.values()]
        for card in self._cards():
            if self._limiter.why_not(card) is not None:
                continue
            try:
                found.drifted += self._limiter.repair_above(card, containers, changes=changes)
            except EnforcementError as error:
                log.warning("kept_memory_not_repaired", card=card, reason=str(error))
        return found

    async def _say(
        self,
        whose: tuple[str, Container],
        pods: Mapping[str, PodInfo] | None,
        reason: str,
        text: str,
    ) -> None:
        uid, container = whose
        pod = (pods or {}).get(uid)
        note = f"the limit of container {container.name} on a card: {text}"
        log.warning(_EVENTS[reason], uid=uid, container=container.name, reason=text)
        if pod is not None:
            record = pod.record
            await self._recorder.emit(
                Regarding(kind=PODS, name=record.name, namespace=record.namespace, uid=record.uid),
                reason=reason,
                note=note,
                level=EventLevel.WARNING,
            )
