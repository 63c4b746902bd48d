"""Proves periodically that every promised limit stands, and repairs what does not."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from deviceplugin.enforcement.interface import (
    EnforcementError,
    Limit,
    LimitMissingError,
    ResizePendingError,
)
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.enforcement.promises import limits_of
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Container
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.request.language import wants_kernel
from fracgpu.state.allocation import write_assignment
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS, Kind
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

_EVENTS: Final = {
    "LimitRestored": "limit_restored",
    "LimitNotProved": "limit_not_proved",
    "UnlimitedContainerStopped": "unlimited_container_stopped",
    "ResizeNotApplied": "resize_not_applied",
}
# Until the cards have been listed, and so what can limit them is known.
_SOON_S: Final = 1.0

Running = Mapping[str, tuple[str, Container]]
"""The node's running containers: id → UID of the pod, and the container."""


class PodPatcher(Protocol):
    """What confirming a resize needs of the API server."""

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]: ...


@dataclass(slots=True)
class Findings:
    """What one audit found.

    Attributes:
        promised: how many limits were promised.
        restored: by container id, which limits did not stand and were set again.
        unproven: by container id, why a promised limit does not stand.
        missing: how many promised limits do not stand.
        pending: by container id, why a granted size cannot be applied now.
        applied: the pods that have been resized, and whose new limits all stand.
        unlimited: those of them that are known to be missing, of pods that run only with limits.
        drifted: how many cgroups above containers kept another amount than those.
    """

    promised: int = 0
    restored: dict[str, str] = field(default_factory=dict)
    unproven: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    pending: dict[str, str] = field(default_factory=dict)
    applied: list[PodInfo] = field(default_factory=list)
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
            _inspect_limit(container, limit, pod, found, limiter)
    found.applied = [pod for pod in (pods or {}).values() if _is_applied(pod, running, limiter)]
    return found


def _inspect_limit(
    container: Container, limit: Limit, pod: PodInfo | None, found: Findings, limiter: Limiter
) -> None:
    found.promised += 1
    try:
        was = limiter.verify(container, limit, _before(pod, container.name, limit))
    except ResizePendingError as error:
        found.pending[container.id] = str(error)
    except EnforcementError as error:
        found.missing += 1
        found.unproven[container.id] = str(error)
        wanted = pod is not None and wants_kernel(pod.annotations)
        if wanted and isinstance(error, LimitMissingError):
            found.unlimited.add(container.id)
    else:
        if was is not None:
            found.restored[container.id] = was


def _before(pod: PodInfo | None, container: str, limit: Limit) -> Limit | None:
    """Return the limit that a container has while it is being resized."""
    resize = pod.record.resize if pod is not None else None
    if resize is None:
        return None
    parts = limits_of(resize.applied.get(container, ()))
    return next((each for each in parts if each.card == limit.card and each != limit), None)


def _is_applied(pod: PodInfo, running: Running, limiter: Limiter) -> bool:
    """Report whether the sizes that a pod was granted are its limits, which nobody knows yet.

    Only of a pod whose containers run: what the next start sets is known then.
    """
    resize = pod.record.resize
    if resize is None or not resize.under_way:
        return False
    here = {each.name: each for uid, each in running.values() if uid == pod.record.uid}
    return all(
        name in here and limiter.stand(here[name], limits_of(parts))
        for name, parts in resize.granted.items()
    )


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
        writer: says on pods which sizes are applied.
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
        writer: PodPatcher,
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
        self._writer = writer
        self._pending: Mapping[str, str] = {}
        self._tried: frozenset[tuple[str, str]] = frozenset()
        self._wake = asyncio.Event()
        self._unproven: Mapping[str, str] = {}
        self._unlimited: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await self.audit()
            self._on_probed()
            known = self._limiter.unlimited is not None
            limit_s = self._period_s if known else min(self._period_s, _SOON_S)
            await wait_at_most(self._clock, self._wake, limit_s=limit_s)
            self._wake.clear()

    def pods_changed(self) -> None:
        """Audit at once if a pod was granted another size; call it after each change of a pod."""
        granted = frozenset(
            (uid, pod.annotations[names.RESIZED])
            for uid, pod in (self._pods() or {}).items()
            if pod.record.resize is not None and pod.record.resize.under_way
        )
        if granted - self._tried:
            self._wake.set()
        self._tried = granted

    async def audit(self) -> Findings:
        """Audit once."""
        changes = self._limiter.changes
        # In this order: a container that starts later knows the pods at least as they are here.
        pods, named = self._pods(), self._running()
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
        for container_id, why in found.pending.items():
            if self._pending.get(container_id) != why:
                await self._say(running[container_id], pods, "ResizeNotApplied", why)
        self._pending = found.pending
        for pod in found.applied:
            await self._confirm(pod)
        self._unproven, self._unlimited = found.unproven, frozenset(found.unlimited)
        return found

    async def _confirm(self, pod: PodInfo) -> None:
        """Write that a pod has its new limits, unless it has changed since."""
        record = pod.record
        assert record.resize is not None, "it was resized"  # noqa: S101
        patch = {
            "metadata": {
                "uid": record.uid,
                "resourceVersion": record.resource_version,
                "annotations": {names.APPLIED: write_assignment(record.resize.granted)},
            }
        }
        try:
            await self._writer.patch(PODS, record.name, patch, namespace=record.namespace)
        except KubeError as error:
            log.info("resize_not_confirmed", pod=record.key, reason=str(error))
            self._tried = frozenset()  # with the pod's next change
            return
        log.info("resize_applied", pod=record.key, uid=record.uid, asked=record.resize.asked)
        await self._recorder.emit(
            Regarding.pod(record),
            reason="ResizeApplied",
            note=f"{names.RESIZE} {record.resize.asked}: its limit is set",
        )

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
                Regarding.pod(record),
                reason=reason,
                note=note,
                level=EventLevel.WARNING,
            )
